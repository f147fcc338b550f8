"""Run by `test_frozen_plugin.py` in an interpreter that has the frozen plugin: starts an engine as an operator would.

frozen_run.py CHECKPOINT    (prompts as JSON on standard input; tokens and choices as JSON on standard output)
"""

from __future__ import annotations

import json
import logging
import sys


def main() -> None:
    """Start, generate, print."""
    from driver import drive, request

    from tenon_core.config import EngineConfig
    from tenon_core.engine.start import start_with_report

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    config = EngineConfig.from_flat(
        model=sys.argv[1],
        platform="frozen",
        platform_opt=("frozen.scale_rows=true",),
        max_model_len=256,
        max_num_seqs=4,
        num_blocks=80,
    )
    engine, report = start_with_report(config)
    prompts = json.load(sys.stdin)
    outcome = drive(engine, [request(i, prompt, max_tokens=12, n=2) for i, prompt in enumerate(prompts)])
    engine.shutdown()
    print(
        json.dumps(
            {
                "tokens": [outcome.of(i) for i in range(len(prompts))],
                "sources": {choice.spec.op: choice.source for choice in report.assembled.table.choices},
                "refused": {choice.spec.op: dict(choice.refused) for choice in report.assembled.table.choices},
            }
        )
    )


if __name__ == "__main__":
    main()
