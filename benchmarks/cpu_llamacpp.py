"""llama.cpp as a peer of `cpu.py`: its server's engine in this process, on the same GGUF file.

Needs its bindings with built libraries, in a folder of their own: `pip install --no-deps --target DIR xllamacpp`, and
DIR in PYTHONPATH. The wheel is built for AVX2: on a wider machine build llama.cpp there, or it is no peer.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Prompts = list[list[int]]


class LlamaCpp:
    """One server of up to `sequences` requests of `length` tokens; KV cache in float16, as it chooses itself."""

    def __init__(self, path: Path, *, threads: int, sequences: int, length: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel = sequences * length, sequences
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup = False
        self.name = f"llama.cpp {path.stem.rsplit('.', 1)[-1]}"
        self._server = xllamacpp.Server(params)
        self._callers = ThreadPoolExecutor(sequences)

    def generate(self, prompts: Prompts, count: int) -> Prompts:
        """Greedy texts of every prompt, all at once; as many tokens as asked for, which is checked."""

        def one(prompt: list[int]) -> list[int]:
            asked = {
                "prompt": prompt, "n_predict": count, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                "cache_prompt": False,
            }  # fmt: skip
            found: Any = self._server.handle_completions(asked)
            usage = found["usage"]
            if usage["completion_tokens"] != count or usage["prompt_tokens"] != len(prompt):
                raise RuntimeError(f"llama.cpp did other work than asked for: {usage}")
            return list(range(count))

        return list(self._callers.map(one, prompts))
