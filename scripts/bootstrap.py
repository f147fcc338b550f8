"""Makes a virtual environment with Tenon in it, from this checkout: `python3 scripts/bootstrap.py demo|test`.

Needs nothing but Python 3.10 or newer. Before anything large is installed, pip is asked what torch would bring: where
that is another vendor's libraries (several gigabytes), nothing is installed and the message says how to get a CPU
build. What a profile asks for by name (triton, whose interpreter the tests need) is not judged. A stamp in the
environment makes a second run free.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints" / "cpu.txt"
FLOORS = ROOT / "requirements" / "floors.txt"
TEST_REQUIREMENTS = ROOT / "requirements" / "test.txt"
PACKAGES = {
    "demo": ("platforms", "core", "plugins/cpu"),
    "test": ("platforms", "core", "plugins/cpu", "plugins/triton", "plugins/cuda", "plugins/sim", "plugin_sdk"),
}
MIN_PYTHON = (3, 10)
MIN_PIP = (22, 2)  # the first with `--report`
FOREIGN_PREFIXES = ("nvidia-", "cuda-", "triton", "pytorch-triton", "rocm", "intel-sycl")


class Stop(Exception):  # noqa: N818 (not an error of a library: the end of this script)
    """Ends the script with a message."""


def main() -> int:
    """Make or update the environment; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("profile", choices=sorted(PACKAGES), help="demo: engine and CPU platform; test: everything")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where the environment is made")
    arguments = parser.parse_args()
    try:
        prepare(arguments.profile, arguments.venv.resolve())
    except Stop as stop:
        print(f"error: {stop}", file=sys.stderr)
        return 1
    return 0


def prepare(profile: str, folder: Path) -> None:
    """The environment `folder` with everything `profile` needs."""
    if sys.version_info < MIN_PYTHON:
        raise Stop(f"Python {sys.version.split()[0]} is too old: use 3.10 or newer (make PYTHON=python3.12 ...)")
    stamp = folder / f"tenon-{profile}.stamp"
    wanted = fingerprint(profile)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    python = make_venv(folder)
    check_torch(python)
    say(f"installing Tenon ({profile}) into {folder}")
    install(python, profile)
    stamp.write_text(wanted)


def fingerprint(profile: str) -> str:
    """Changes when the environment must be installed again."""
    files = [CONSTRAINTS, FLOORS, Path(__file__), *(ROOT / one / "pyproject.toml" for one in PACKAGES[profile])]
    if profile == "test":
        files.append(TEST_REQUIREMENTS)
    digest = hashlib.sha256(str(ROOT).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def make_venv(folder: Path) -> Path:
    """An environment with a pip that can report; returns its interpreter."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        say(f"making {folder}")
        try:
            venv.create(folder, with_pip=True)
        except subprocess.CalledProcessError as error:
            raise Stop(
                "this Python cannot make environments with pip: install its venv package"
                " (Debian and Ubuntu: apt install python3-venv)"
            ) from error
    version = subprocess.run(
        [python, "-c", "import pip; print(pip.__version__)"], check=True, capture_output=True, text=True
    ).stdout
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_PIP:
        pip(python, "install", "--quiet", "--upgrade", "pip")
    return python


def check_torch(python: Path) -> None:
    """Stop where installing torch would bring another vendor's libraries."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        pip(python, "install", "--quiet", "--dry-run", "--report", report, "-c", CONSTRAINTS, "-c", FLOORS, "torch")
        names = [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]
    foreign = foreign_wheels(names)
    if foreign:
        raise Stop(
            f"torch would bring {len(foreign)} packages of another vendor here ({', '.join(foreign[:4])}, ...): several"
            " gigabytes that a CPU never uses. Nothing was installed.\n"
            "Point pip at PyTorch's index of CPU builds and run this again. PyTorch's installation page shows its"
            " address (choose pip and CPU); give it through pip's own configuration, either of:\n"
            "    export PIP_EXTRA_INDEX_URL=ADDRESS\n"
            f"    {python} -m pip config --site set global.extra-index-url ADDRESS\n"
            "A CPU wheel of torch that you have on disk serves too: export PIP_FIND_LINKS=FOLDER"
        )


def foreign_wheels(names: list[str]) -> list[str]:
    """Those of the distributions that belong to an accelerator's vendor."""
    normal = sorted(name.lower().replace("_", "-").replace(".", "-") for name in names)
    return [name for name in normal if name.startswith(FOREIGN_PREFIXES)]


def install(python: Path, profile: str) -> None:
    """Our packages, editable, and what the profile needs beside them, in one resolution."""
    arguments: list[str | Path] = ["install", "--quiet", "-c", CONSTRAINTS, "-c", FLOORS]
    for package in PACKAGES[profile]:
        arguments += ["-e", ROOT / package]
    if profile == "test":
        arguments += ["-r", TEST_REQUIREMENTS]
    pip(python, *arguments)


def pip(python: Path, *arguments: str | Path) -> None:
    """Run pip; its own message goes to the terminal."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command).returncode != 0:
        raise Stop(f"pip {arguments[0]} failed (its message is above)")


def say(text: str) -> None:
    """One line of progress."""
    print(f"==> {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
