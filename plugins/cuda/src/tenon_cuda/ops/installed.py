"""Whether a library is installed in a version that we understand. Nothing is imported: metadata alone is read."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packaging.specifiers import SpecifierSet

from tenon_platforms.kernel import No


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A distribution, the module that we import of it, and the versions whose signatures we have read."""

    distribution: str
    module: str
    versions: str

    def missing(self) -> No | None:
        """Why it cannot be used here, or None."""
        wanted = f"{self.distribution}{self.versions}"
        try:
            found = version(self.distribution)
        except PackageNotFoundError:
            return No(f"{self.distribution} is not installed", f"pip install '{wanted}'")
        if not SpecifierSet(self.versions).contains(found, prereleases=True):
            return No(f"{self.distribution} {found} is not one of {self.versions}", f"pip install '{wanted}'")
        if find_spec(self.module.partition(".")[0]) is None:
            return No(f"{self.distribution} {found} is installed without its module {self.module}")
        return None
