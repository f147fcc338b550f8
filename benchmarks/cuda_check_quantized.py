"""Quantized checkpoints on the GPU: a tiny one of every kind of FP8, and one of integers, through whole engines.

Products are the conformance kit's to check against float64 (L2). Here a checkpoint loads, no linear is left to the
reference, captured steps give the tokens of eager ones padded alike, and most tokens are those of what the file
means: activations in FP8 move some of them, how many depends on the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cuda_check_prompts import PaddedCUDA
from driver import drive, prompts_of, request
from quantized_files import FORMATS, write
from quantized_reference import calibrated, load_plain, num_differing
from tiny_models import TINY, make_tiny

from tenon_core.config import EngineConfig
from tenon_core.engine.assembly import Sockets
from tenon_core.engine.start import load, open_model
from tenon_cuda.platform import CUDAPlatform
from tenon_platforms.dtypes import DType

# kind -> how its linears are served where the card has FP8
KINDS = {
    "fp8-dynamic": "native",
    "fp8-static": "native",
    "ct-fp8-channel": "native",
    "fp8-block": "native",
    "ct-int8": "dequantize",
    "gptq-w4-ordered-zeros": "dequantize",
}
MODEL = "qwen2-wide"
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "initializer_range": 0.3}
TINY.setdefault(MODEL, ("qwen2", "Qwen2", WIDE))
PROMPTS = prompts_of((1, 9, 40, 90, 200))
NEW_TOKENS = 24
MOST_MOVED = {"native": 0.6, "dequantize": 0.35}  # of tokens; a wrong product moves nearly all (1 of 256 is right)


def check_quantized(kind: str, folder: Path, options: dict[str, Any]) -> str:
    """One checkpoint; the text of its line."""

    tiny = make_tiny(MODEL, folder / f"for-{kind}")
    written = write(tiny.path, folder / kind, FORMATS[kind], calibrated(tiny.model, PROMPTS[2]))
    captured, served = _tokens(written.path, CUDAPlatform(options))
    eager, _ = _tokens(written.path, PaddedCUDA(options))
    assert captured == eager, "captured steps give other tokens than the same steps run eagerly"
    assert served == {KINDS[kind]} or options.get("kernels") == "torch", f"linears are served as {served}"
    moved = num_differing(captured, PROMPTS, load_plain(written.meant)) / (len(PROMPTS) * NEW_TOKENS)
    assert moved <= MOST_MOVED[KINDS[kind]], f"{moved:.0%} of the tokens are others than the file means"
    return f"{', '.join(sorted(served))}; {moved:.0%} of the tokens moved"


def _tokens(path: Path, platform: CUDAPlatform) -> tuple[list[list[int]], set[str]]:
    """Greedy tokens in bfloat16, and how the layers' linears are served."""
    config = EngineConfig.from_flat(model=str(path), max_num_seqs=8, max_model_len=512, kv_cache_memory=1 << 26)
    assembled = load(
        config,
        Sockets.open(platform),
        open_model(config),
        dtype=DType.BFLOAT16,
        kv_dtype=DType.BFLOAT16,
    )
    served = {
        choice.kernel.native
        for choice in assembled.table.choices
        if choice.spec.op == "merged_linear" and not all(one.id.startswith("dense") for one in choice.spec.schemes)
    }
    line = assembled.table.reference_line() or ""
    assert "merged_linear" not in line, line
    try:
        asked = [request(i, prompt, max_tokens=NEW_TOKENS) for i, prompt in enumerate(PROMPTS)]
        outcome = drive(assembled.engine, asked)
    finally:
        assembled.engine.shutdown()
    return [outcome.of(i) for i in range(len(PROMPTS))], served
