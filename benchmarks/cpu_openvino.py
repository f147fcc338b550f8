"""OpenVINO GenAI as a peer of `cpu.py`: its continuous batching, in a process and an environment of its own.

    python benchmarks/cpu.py MODEL --openvino PYTHON --openvino-model DIR

PYTHON is that environment's interpreter: `pip install openvino-genai`. DIR holds the exported model, such as
`optimum-cli export openvino --model FOLDER --weight-format fp16 DIR` writes (`int8` is another peer). It computes in
bfloat16 where the machine has products of it, else in float32, as it chooses itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from peer_process import ProcessPeer, Prompts, claim_stdout, serve

KV_GIB = 2


def openvino_peer(python: str, folder: Path, *, threads: int, sequences: int) -> ProcessPeer:
    """One pipeline of up to `sequences` requests."""
    arguments = [str(folder), str(threads), str(sequences)]
    return ProcessPeer(python, Path(__file__), arguments, threads=threads, environment={})


class OpenVino:
    """The peer's side."""

    def __init__(self, folder: str, threads: int, sequences: int) -> None:
        import openvino
        import openvino_genai as genai

        self.name = f"openvino {openvino.__version__.partition('-')[0]} {Path(folder).name}"
        self._genai, self._tensor = genai, openvino.Tensor
        schedule = genai.SchedulerConfig()
        schedule.cache_size, schedule.max_num_seqs = KV_GIB, sequences
        schedule.max_num_batched_tokens, schedule.enable_prefix_caching = 2048, False
        options = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline: Any = genai.ContinuousBatchingPipeline(folder, schedule, "CPU", options)

    def generate(self, prompts: Prompts, count: int) -> Prompts:
        """Greedy tokens of every prompt."""
        import numpy as np

        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = count
        config.ignore_eos, config.do_sample = True, False
        asked = [self._tensor(np.array([prompt], np.int64)) for prompt in prompts]
        found = self._pipeline.generate(asked, [config] * len(prompts))
        return [list(one.m_generation_ids[0]) for one in found]


if __name__ == "__main__":
    answers = claim_stdout()
    serve(OpenVino(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), answers)
