"""Versions of what is installed, read from metadata: nothing is imported."""

from __future__ import annotations

import platform

from importlib_metadata import distributions

LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors")


def versions() -> dict[str, str]:
    """Python, our distributions (plugins included) and the libraries that matter, by name."""
    found = {"python": platform.python_version()}
    ours: dict[str, str] = {}
    libraries: dict[str, str] = {}
    for distribution in distributions():
        name = (distribution.name or "").lower().replace("_", "-")
        if name == "tenon" or name.startswith("tenon-"):
            ours.setdefault(name, distribution.version)
        elif name in LIBRARIES:
            libraries.setdefault(name, distribution.version)
    order = sorted(ours, key=lambda name: (name not in ("tenon-core", "tenon-platforms"), name))
    found |= {name: ours[name] for name in order}
    found |= {name: libraries.get(name, "not installed") for name in LIBRARIES}
    return found
