"""Writing a plugin: every template of `templates/`, its placeholders filled in, to the file it is named after.

A folder that holds anything is never written to, so that nothing of anyone's is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from string import Template

from tenon_platforms.errors import ConfigError
from tenon_platforms.version import CONTRACT_VERSION

from .names import PluginNames, check_free

TEMPLATES = Path(__file__).parent / "templates"
SUFFIX = ".tmpl"
PACKAGE = "package"  # the templates' folder that becomes src/<module>


def write_plugin(name: str, folder: Path | None = None) -> tuple[PluginNames, Path, list[Path]]:
    """Write the plugin of a platform `name` into `folder`, tenon-NAME here unless given.

    Returns its names, its folder and the files, relative to it. Raises `ConfigError` for a bad or taken name, and for
    a folder that is not empty or cannot be written.
    """
    names = PluginNames.of(name)
    check_free(names)
    target = Path(names.distribution) if folder is None else folder
    _check_folder(target)
    written = []
    try:
        for place, template in sorted(_templates()):
            file = target / _path(place, names)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(template).substitute(_values(names)), encoding="utf-8")
            written.append(file.relative_to(target))
    except OSError as error:
        raise ConfigError(
            f"{error.filename or target} cannot be written: {error.strerror}", remedy="choose another folder with --dir"
        ) from error
    return names, target, written


def contract_range() -> str:
    """The contract versions a plugin written today is built for: up to the next that may break it."""
    major, minor = CONTRACT_VERSION
    return f">={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def _check_folder(target: Path) -> None:
    if not target.exists():
        return
    what = "is a file" if not target.is_dir() else "is not empty" if any(target.iterdir()) else ""
    if what:
        raise ConfigError(
            f"{target} exists and {what}: a plugin is written into a new folder",
            remedy="choose another with --dir, or move what is there",
        )


def _templates() -> Iterator[tuple[PurePosixPath, str]]:
    """(path without the suffix, text) of every template."""
    for file in TEMPLATES.rglob(f"*{SUFFIX}"):
        inside = PurePosixPath(file.relative_to(TEMPLATES).as_posix())
        yield inside.with_name(file.name.removesuffix(SUFFIX)), file.read_text(encoding="utf-8")


def _path(place: PurePosixPath, names: PluginNames) -> PurePosixPath:
    """Where a template goes. Its .gitignore has no dot among the templates, where it would be obeyed."""
    if place.parts[0] == PACKAGE:
        return PurePosixPath("src", names.module, *place.parts[1:])
    return PurePosixPath(".gitignore") if place.name == "gitignore" else place


def _values(names: PluginNames) -> dict[str, str]:
    return {
        "name": names.name,
        "distribution": names.distribution,
        "module": names.module,
        "title": names.title,
        "variable": names.name.upper().replace("-", "_"),
        "contract": contract_range(),
    }
