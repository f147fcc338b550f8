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
    "grpcio": {"grpc"},
    "grpcio-health-checking": {"grpc_health"},
    "grpcio-reflection": {"grpc_reflection"},
    "protobuf": {"google"},
    "opentelemetry-api": {"opentelemetry"},
    "opentelemetry-sdk": {"opentelemetry"},
    "opentelemetry-exporter-otlp-proto-http": {"opentelemetry"},
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


# extra -> the modules of ours that may import what it brings, always lazily (test_lazy_imports)
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "otel": ("tenon_core/serving/tracing.py", "tenon_core/serving/extras.py"),
    "grpc": ("tenon_core/serving/rpc", "tenon_core/serving/extras.py"),
    "xgrammar": ("tenon_core/sampling/xgrammar_library.py", "tenon_core/config.py"),
}


def declared(pyproject: Path, *, extra: str | None = None) -> set[str]:
    """Top-level modules of the distributions that a pyproject.toml requires, without extras or by one of them."""
    project: dict[str, Any] = tomllib.loads(pyproject.read_text())["project"]
    found: set[str] = set()
    for requirement in project["dependencies"] if extra is None else project["optional-dependencies"][extra]:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match is not None, requirement
        name = match.group().lower()
        found |= MODULES.get(name, {name.replace("-", "_")})
    return found


def violations(
    sources: Iterable[Source], package: str, allowed: set[str], extras: Mapping[str, set[str]] | None = None
) -> list[str]:
    """Imports that `package` may not have; `allowed`: top-level modules from outside; `extras`: by extra's name."""
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
            elif top not in STANDARD | allowed | _of_extras(source, extras or {}):
                found.append(f"{source.at(node)} imports {module}, which {package}'s pyproject.toml does not declare")
    return found


def _of_extras(source: Source, extras: Mapping[str, set[str]]) -> set[str]:
    """What this file may import because an extra brings it."""
    path = source.path.as_posix()
    return {
        module
        for name, modules in extras.items()
        for place in EXTRAS[name]
        if path.endswith(place) or f"/{place}/" in path
        for module in modules
    }
