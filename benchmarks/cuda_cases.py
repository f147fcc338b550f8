"""What `cuda.py` runs: model shapes, cases, the limit that bytes and FLOPs set on one H200, and the target.

Limits: weights and KV at 4.3 TB/s, products at 790 (bfloat16) and 1,466 (FP8) TFLOP/s, all measured on that card. They
are lower bounds of time: a share of 1.0 cannot be reached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3,
        "max_position_embeddings": 131072,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
}
MAX_MODEL_LEN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the table. prompt, output: least and most tokens. total: prompt tokens count too.

    limit, target: tokens a second; peer: the better of the two leading engines on the same card.
    """

    name: str
    model: str
    requests: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    limit: float
    target: float
    peer: float
    temperature: float = 0.0
    total: bool = False
    quantize: str = "none"

    @property
    def engine(self) -> tuple[str, str]:
        """Cases of one engine run on the same one."""
        return (self.model, self.quantize)


def _same(case: Case, *, limit: float, target: float, peer: float) -> Case:
    return replace(case, name=f"{case.name}-fp8", quantize="fp8", limit=limit, target=target, peer=peer)


_8B = "llama-3.1-8b"
_ONE = Case(name="8b-1", model=_8B, requests=1, prompt=(128, 128), output=(256, 256), limit=290, target=255, peer=211)
_16 = Case(
    name="8b-16", model=_8B, requests=16, prompt=(128, 128), output=(256, 256), limit=4080, target=3600, peer=3076
)
_512 = Case(
    name="8b-512", model=_8B, requests=512, prompt=(512, 512), output=(256, 256), limit=13300, target=12000, peer=10500
)
_1024 = Case(
    name="8b-1024",
    model=_8B,
    requests=1024,
    prompt=(128, 128),
    output=(128, 128),
    limit=23400,
    target=20000,
    peer=17100,
)
_LONG = Case(
    name="8b-long",
    model=_8B,
    requests=64,
    prompt=(3500, 3500),
    output=(64, 64),
    limit=43000,
    target=40000,
    peer=37100,
    total=True,
)
CASES = (
    _ONE,
    _16,
    _512,
    _1024,
    _LONG,
    _same(_ONE, limit=545, target=400, peer=285),
    _same(_16, limit=8000, target=5600, peer=4220),
    _same(_512, limit=19800, target=17000, peer=14300),
    _same(_1024, limit=38000, target=29000, peer=24100),
    _same(_LONG, limit=71000, target=62000, peer=53600),
    Case(
        name="0.6b-1",
        model="qwen3-0.6b",
        requests=1,
        prompt=(128, 128),
        output=(256, 256),
        limit=3600,
        target=1200,
        peer=579,
    ),
    Case(
        name="0.6b-256",
        model="qwen3-0.6b",
        requests=256,
        prompt=(100, 1024),
        output=(100, 1024),
        limit=37000,
        target=32000,
        peer=21200,
        temperature=0.6,
    ),
    Case(
        name="0.6b-1024",
        model="qwen3-0.6b",
        requests=1024,
        prompt=(128, 128),
        output=(128, 128),
        limit=90000,
        target=65000,
        peer=43900,
    ),
)
