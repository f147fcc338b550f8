"""A model whose attention has sinks: the engine's greedy tokens equal a plain computation of the same weights.

No served family has sinks yet, so the model is a spec of our own: the tiny Llama's with `sinks` set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from driver import MAX_LEN, StateDict, build, drive, open_platform, prompts_of, request
from equality import Reference, assert_greedy_equal, assert_wide
from tiny_models import SIZES

from tenon_core.engine.assembly import ModelSource
from tenon_core.models.family import WeightNames
from tenon_core.models.registry import family_of
from tenon_core.models.weights import tensor_shapes
from tenon_platforms.errors import ConfigError
from tenon_platforms.model import ModelSpec

pytestmark = pytest.mark.e2e
CONFIG = {
    **SIZES,
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
NAMES = WeightNames()
Weights = dict[str, torch.Tensor]


def sinks_spec() -> ModelSpec:
    spec = family_of(CONFIG).spec(CONFIG, MAX_LEN)
    return replace(spec, layers=tuple(replace(one, mixer=replace(one.mixer, sinks=True)) for one in spec.layers))


def random_weights(spec: ModelSpec) -> Weights:
    generator = torch.Generator().manual_seed(5)

    def make(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator)
        return noise * 2 if name.endswith("sinks") else noise * 0.2 + 1 if "norm" in name else noise * 0.4

    return {name: make(name, shape) for name, shape in tensor_shapes(spec, NAMES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainModel:
    """The model's definition, computed without a cache in one dtype. has_sinks False leaves them out."""

    spec: ModelSpec
    weights: Weights
    dtype: torch.dtype
    has_sinks: bool = True

    def __call__(self, tokens: list[int]) -> np.ndarray:
        x = self._get("model.embed_tokens.weight")[torch.tensor(tokens)]
        for index in range(len(self.spec.layers)):
            at = f"model.layers.{index}"
            x = x + self._attention(index, self._norm(x, f"{at}.input_layernorm"))
            y = self._norm(x, f"{at}.post_attention_layernorm")
            gate = torch.nn.functional.silu(self._linear(y, f"{at}.mlp.gate_proj"))
            x = x + self._linear(gate * self._linear(y, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
        return self._linear(self._norm(x, "model.norm"), "lm_head").double().numpy()

    def _get(self, name: str) -> torch.Tensor:
        return self.weights[name].to(self.dtype)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self._get(f"{name}.weight").T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self._get(f"{name}.weight")

    def _attention(self, index: int, x: torch.Tensor) -> torch.Tensor:
        mixer, at = self.spec.layers[index].mixer, f"model.layers.{index}.self_attn"
        heads, dim = mixer.num_heads, mixer.head_dim
        q, k, v = (self._linear(x, f"{at}.{one}_proj").unflatten(-1, (-1, dim)).transpose(0, 1) for one in "qkv")
        q, k = self._rotate(q), self._rotate(k)  # [heads, tokens, dim]
        k, v = (one.repeat_interleave(heads // mixer.num_kv_heads, 0) for one in (k, v))
        scores = (q @ k.transpose(1, 2)) * mixer.scale
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        if self.has_sinks:  # one more place to look at, that holds nothing
            sink = self._get(f"{at}.sinks")[:, None, None].expand(-1, len(x), 1)
            scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(-1)[..., : len(x)]
        return self._linear((weights @ v).transpose(0, 1).flatten(1), f"{at}.o_proj")

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        dim = x.shape[-1]
        rates = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.arange(x.shape[1])[:, None] * rates
        cos, sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
        first, second = x[..., : dim // 2], x[..., dim // 2 :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def source(spec: ModelSpec, weights: Weights) -> ModelSource:
    return ModelSource(name="sinks", spec=spec, names=NAMES, weights=StateDict(weights), eos_token_ids=())


def test_greedy_tokens_equal_a_plain_computation(platform_name: str) -> None:
    spec = sinks_spec()
    weights = random_weights(spec)
    reference = Reference(
        narrow=PlainModel(spec=spec, weights=weights, dtype=torch.float32),
        wide=PlainModel(spec=spec, weights=weights, dtype=torch.float64),
    )
    prompts = prompts_of((1, 7, 40, 100))
    assert_wide(reference, prompts[-1])
    engine = build(source(spec, weights), open_platform(platform_name)).engine
    outcome = drive(engine, [request(i, prompt, max_tokens=24) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"sinks on {platform_name}, prompt {i}")
    without = PlainModel(spec=spec, weights=weights, dtype=torch.float64, has_sinks=False)
    with pytest.raises(AssertionError, match="tokens differ"):
        for i, prompt in enumerate(prompts):
            assert_greedy_equal(outcome.of(i), Reference(narrow=without, wide=without), prompt)


def test_sinks_that_the_checkpoint_lacks_are_refused() -> None:
    spec = sinks_spec()
    weights = random_weights(spec)
    del weights["model.layers.1.self_attn.sinks"]
    with pytest.raises(ConfigError, match=r"no tensor 'model\.layers\.1\.self_attn\.sinks', which the model's config"):
        build(source(spec, weights), open_platform("reference"))


def test_sinks_of_another_shape_are_refused() -> None:
    spec = sinks_spec()
    weights = random_weights(spec)
    weights["model.layers.0.self_attn.sinks"] = torch.zeros(2)
    with pytest.raises(ConfigError, match=r"shape \[2\], the model's config says \[4\]"):
        build(source(spec, weights), open_platform("reference"))
