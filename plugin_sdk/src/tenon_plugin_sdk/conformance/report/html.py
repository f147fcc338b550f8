"""The page that `--html` writes: one file, no scripts, nothing from elsewhere. Failures first, then every level."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..registry import LEVELS
from .results import OUTCOMES, Entry, Results, slowest
from .terminal import verdict

STYLE = """
:root{color-scheme:light dark;--line:#8884;--pass:#1a7f4b;--fail:#c0362c;--excuse:#9a6700;--skip:#6b7280}
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2.5rem auto;padding:0 1.25rem}
h1{font-size:1.7rem;margin:0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
.lead{font-size:1.1rem;margin:.3rem 0 1.5rem}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.bar{display:flex;height:.7rem;border-radius:.35rem;overflow:hidden;min-width:8rem;background:var(--line)}
.bar i{display:block}.passed{color:var(--pass)}.failed{color:var(--fail)}.excused{color:var(--excuse)}
.skipped{color:var(--skip)}.bar .passed{background:var(--pass)}.bar .failed{background:var(--fail)}
.bar .excused{background:var(--excuse)}.bar .skipped{background:var(--skip)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem;margin:.3rem 0;padding:.6rem}
pre{border-left:3px solid var(--fail)}
code{overflow-wrap:anywhere}details{border-bottom:1px solid var(--line);padding:.4rem 0}summary{cursor:pointer}
"""


def page(results: Results) -> str:
    """The whole page."""
    return "\n".join(_parts(results)) + "\n"


def _parts(results: Results) -> Iterator[str]:
    title = f"Conformance of {escape(results.platform)}"
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
    highest = results.highest()
    said = verdict(results) if highest is None else f"Conforms up to <b>{highest} ({LEVELS[highest][0]})</b>"
    seeds = f", {results.seeds} seeds" if results.seeds > 1 else ""
    length = f"{escape(results.profile)} profile{seeds}, {results.seconds:.0f} s"
    yield f'<p class="lead">{said}; {length}.</p>'
    yield from _levels(results)
    yield from _listed(results, "failed", "What fails")
    yield from _listed(results, "excused", "What is excused")
    for level in LEVELS:
        if results.of(level):
            yield from _level(results, level)
    yield from _figures(results)
    yield from _slow(results)
    yield from _machine(results)
    yield "</body></html>"


def _levels(results: Results) -> Iterator[str]:
    heads = "".join(f'<th class="n">{name}</th>' for name in OUTCOMES)
    yield f'<table><tr><th>level</th><th></th>{heads}<th class="n">time</th></tr>'
    for level, (name, _) in LEVELS.items():
        counts, entries = results.counts(level), results.of(level)
        if not entries:
            continue
        bar = "".join(
            f'<i class="{each}" style="width:{100 * counts[each] / len(entries):.2f}%"></i>' for each in OUTCOMES
        )
        cells = "".join(f'<td class="n {each}">{counts[each] or ""}</td>' for each in OUTCOMES)
        seconds = sum(entry.seconds for entry in entries)
        yield f'<tr><td>{level} {name}</td><td><div class="bar">{bar}</div></td>{cells}'
        yield f'<td class="n">{seconds:.1f} s</td></tr>'
    yield "</table>"


def _listed(results: Results, outcome: str, title: str) -> Iterator[str]:
    found = [entry for entry in results.entries if entry.outcome == outcome]
    if not found:
        return
    yield f'<h2 class="{outcome}">{title} ({len(found)})</h2>'
    for entry in found:
        yield f"<div><code>{escape(entry.address)}</code>: {escape(entry.what)}<pre>{escape(entry.text)}</pre></div>"


def _level(results: Results, level: str) -> Iterator[str]:
    yield f"<h2>{level} {LEVELS[level][0]}</h2>"
    by_check: dict[str, list[Entry]] = {}
    for entry in results.of(level):
        by_check.setdefault(entry.check, []).append(entry)
    for name, entries in by_check.items():
        passed = sum(entry.outcome == "passed" for entry in entries)
        worst = "failed" if any(entry.outcome == "failed" for entry in entries) else "passed"
        yield f'<details><summary><b>{escape(name)}</b> <span class="{worst}">{passed} of {len(entries)}</span>'
        yield f" {escape(entries[0].what)}</summary><table>"
        for entry in entries:
            reason = escape(entry.text.splitlines()[0]) if entry.text else ""
            yield f"<tr><td><code>{escape(entry.case or name)}</code></td>"
            yield f'<td class="{entry.outcome}">{entry.outcome}</td>'
            yield f'<td>{reason}</td><td class="n">{entry.seconds:.2f} s</td></tr>'
        yield "</table></details>"


def _slow(results: Results) -> Iterator[str]:
    yield "<h2>Slowest checks</h2><table>"
    for entry in slowest(results.entries):
        yield f'<tr><td><code>{escape(entry.address)}</code></td><td class="n">{entry.seconds:.1f} s</td></tr>'
    yield "</table>"


def _figures(results: Results) -> Iterator[str]:
    if not results.measured:
        return
    yield "<h2>Figures</h2><table>"
    for name, held in results.measured.items():
        yield f'<tr><td><code>{escape(name)}</code></td><td class="n">{held["value"]:.4g}</td>'
        yield f"<td>{escape(held['unit'])}</td></tr>"
    yield "</table>"


def _machine(results: Results) -> Iterator[str]:
    yield "<h2>Where it ran</h2><table>"
    rows = {**results.machine, **{f"option {key}": value for key, value in results.options.items()}}
    for name, value in rows.items():
        shown = ", ".join(f"{key} {held}" for key, held in value.items()) if isinstance(value, dict) else str(value)
        yield f"<tr><td>{escape(name)}</td><td>{escape(shown)}</td></tr>"
    yield "</table>"
