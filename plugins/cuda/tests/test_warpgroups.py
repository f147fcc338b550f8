"""Prompts on Hopper: what their kernel is asked for, and that all kernels on warp groups compile without spills."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops import experimental
from tenon_cuda.ops.warpgroups import WarpgroupPrompts
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec

pytestmark = pytest.mark.unit
SCRIPT = Path(__file__).with_name("compile_warpgroups.py")
SHARED = 227 * 1024  # bytes that a program may use
HOPPER = Arch(9, 0)
LLAMA = AttentionSpec(
    num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16
)


def test_it_takes_plain_attention_of_half_types() -> None:
    prompts = WarpgroupPrompts(HOPPER)
    assert prompts.takes(LLAMA, 64)
    assert prompts.takes(replace(LLAMA, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16, causal=False), 64)
    assert not prompts.takes(LLAMA, 16)
    refused: list[dict[str, object]] = [
        {"head_dim": 64}, {"num_heads": 24}, {"sliding_window": 100}, {"soft_cap": 30.0}, {"sinks": True},
        {"kv_dtype": DType.FLOAT8_E4M3}, {"dtype": DType.FLOAT32, "kv_dtype": DType.FLOAT32},
    ]  # fmt: skip
    for change in refused:
        assert not prompts.takes(replace(LLAMA, **change), 64), change  # type: ignore[arg-type]
    for other in (Arch(8, 0), Arch(8, 9), Arch(10, 0), Arch(12, 0)):
        assert not WarpgroupPrompts(other).takes(LLAMA, 64)


def test_a_triton_without_the_language_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"no module named {name}")

    monkeypatch.setattr(experimental.importlib, "import_module", missing)
    experimental.kernels_of.cache_clear()
    prompts = WarpgroupPrompts(HOPPER)
    try:
        with caplog.at_level("INFO"):
            assert not prompts.takes(LLAMA, 64)
            assert not prompts.takes(LLAMA, 64)
    finally:
        experimental.kernels_of.cache_clear()
    assert caplog.text.count("no warp groups") == 1


def test_it_compiles_without_spills() -> None:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^(\w+) shared=(\d+) spills=(\S+) products=(\S+)$", done.stdout, re.MULTILINE)
    products = {
        "bf16": "m64n128k16,m64n64k16",
        "fp16": "m64n128k16,m64n64k16",
        "apart": "m64n128k16,m64n64k16",
        "gated": "m64n256k16",
        "gated8": "m64n256k32",
        "few": "m64n16k16,m64n8k16",
        "few8": "m64n16k32,m64n8k32",
        "few8_16": "m64n16k32,m64n32k32",
    }
    assert {name: kinds for name, _, _, kinds in found} == products
    for name, shared, spilled, _ in found:
        assert int(shared) <= SHARED and spilled in ("0", "?"), name
