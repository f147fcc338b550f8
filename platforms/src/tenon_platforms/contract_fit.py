"""Why a plugin's contract range and this contract do not fit, which of the two is older, and what brings them together.

Words only: it imports no plugin.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .manifest import OWN_DISTRIBUTION, Manifest
from .version import contract_version_text


def incompatibility(manifest: Manifest, contract: str | None = None) -> str:
    """Why a plugin and this contract do not fit: its range, our version, which of the two is older."""
    text = contract or manifest.contract
    elder = "the plugin is newer than this contract" if is_newer(text) else "the plugin is older than this contract"
    return f"it is built for contract {text}, this is contract {contract_version_text()}: {elder}"


def incompatibility_remedy(manifest: Manifest, contract: str | None = None) -> str:
    """The command that brings the two together."""
    if is_newer(contract or manifest.contract):
        return f"pip install --upgrade tenon-core {OWN_DISTRIBUTION}, or an older {manifest.distribution}"
    return f"pip install --upgrade {manifest.distribution}"


def is_newer(contract: str) -> bool:
    """Whether a range that excludes this contract's version lies above it."""
    ours = Version(contract_version_text())
    for part in SpecifierSet(contract):
        if part.operator in (">=", ">", "~=", "==", "===") and not part.contains(ours, prereleases=True):
            return Version(part.version.rstrip(".*")) >= ours
    return False
