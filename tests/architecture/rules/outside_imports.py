"""What a package imports: from outside only what its pyproject.toml declares, of ours only what the house plan allows.

Lazy imports count too: a missing declaration breaks the first user who reaches that line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from architecture.sources import Source, imports

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STANDARD = sys.stdlib_module_names | {"tomllib"}
# distribution -> modules, where they are called otherwise
MODULES = {
    "pyyaml": {"yaml"},
    "pyzmq": {"zmq"},
    "importlib-metadata": {"importlib_metadata"},
    "huggingface-hub": {"huggingface_hub"},
    "prometheus-client": {"prometheus_client"},
    "nvidia-ml-py": {"pynvml"},
}
OWN_ALLOWED: Mapping[str, frozenset[str]] = {
    "tenon_platforms": frozenset(),
    "tenon_core": frozenset({"tenon_platforms"}),
    "tenon_plugin_sdk": frozenset({"tenon_platforms", "tenon_core"}),
    "tenon_cpu": frozenset({"tenon_platforms"}),
    "tenon_cuda": frozenset({"tenon_platforms", "tenon_triton"}),
    "tenon_triton": frozenset({"tenon_platforms"}),
    "tenon_sim": frozenset({"tenon_platforms"}),
}


def declared(pyproject: Path) -> set[str]:
    """Top-level modules of the distributions that a pyproject.toml requires without an extra."""
    project: dict[str, Any] = tomllib.loads(pyproject.read_text())["project"]
    found: set[str] = set()
    for requirement in project["dependencies"]:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match is not None, requirement
        name = match.group().lower()
        found |= MODULES.get(name, {name.replace("-", "_")})
    return found


def violations(sources: Iterable[Source], package: str, allowed: set[str]) -> list[str]:
    """Imports that `package` may not have; `allowed`: top-level modules from outside."""
    own = OWN_ALLOWED[package] | {package}
    found = []
    for source in sources:
        for module, node in imports(source):
            top = module.partition(".")[0]
            if top.startswith("tenon_"):
                if top not in own:
                    found.append(f"{source.at(node)} imports {module}: {package} may not import {top}")
                elif package == "tenon_plugin_sdk" and top == "tenon_core" and module != top:
                    found.append(f"{source.at(node)} imports {module}: the SDK uses the core's public surface only")
            elif top not in STANDARD and top not in allowed:
                found.append(f"{source.at(node)} imports {module}, which {package}'s pyproject.toml does not declare")
    return found
