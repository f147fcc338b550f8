"""Run by `test_out_of_tree.py` in an interpreter that sees the example plugins: generates, prints what happened.

engine_with_plugins.py CHECKPOINT SCHEDULER ALLOCATOR    (prompts as JSON on standard input)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Generate for the prompts, abort one on the way, print tokens and the plugins' own counters."""
    from driver import build, drive, model_source, open_platform, request

    checkpoint, scheduler, allocator = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    prompts = json.load(sys.stdin)
    source = model_source(checkpoint, json.loads((checkpoint / "config.json").read_text()))
    made = build(source, open_platform("reference"), scheduler=scheduler, block_allocator=allocator)
    engine = made.engine
    requests = [request(number, prompt, max_tokens=16) for number, prompt in enumerate(prompts)]
    doomed = [
        request(100, [1, 2, 3], max_tokens=64, n=3),  # runs, its unborn samples with it
        request(101, [5] * 200, max_tokens=64, n=2),  # still waits
    ]
    outcome = drive(
        engine,
        [*requests, *doomed],
        on_step=lambda step, so_far: engine.abort([100, 101]) if step == 3 else None,
    )
    counters = {}
    if "shortest_first" in sys.modules:
        counters["started"] = sys.modules["shortest_first"].ShortestFirst.started
    if "rotating_blocks" in sys.modules:
        counters["given"] = sys.modules["rotating_blocks"].RotatingBlocks.num_given
    tokens = [outcome.of(number) for number in range(len(prompts))]
    print(json.dumps({"tokens": tokens, "architecture": source.spec.architecture, **counters}))


if __name__ == "__main__":
    main()
