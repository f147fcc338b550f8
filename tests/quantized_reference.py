"""What a quantized checkpoint means, as Transformers models: with plain activations, and rounded as a scheme says."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quantized_files import Format
from torch import nn
from torch.nn.functional import linear

from tenon_plugin_sdk.conformance.truth.equality import logits_of


class Emulated(nn.Module):
    """A linear whose input is rounded as a scheme says."""

    def __init__(self, old: nn.Linear, rounding: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.rounding = old.weight, old.bias, rounding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(self.rounding(x), self.weight, self.bias)


def layers_of(model: nn.Module) -> dict[str, nn.Linear]:
    """The linears that are quantized, by name."""
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and name != "lm_head"
    }


def emulated(model: nn.Module, form: Format, input_max: dict[str, float]) -> nn.Module:
    """A copy in float64 that rounds the input of every quantized linear."""
    model = copy.deepcopy(model).double()
    assert form.rounding is not None
    for name, module in layers_of(model).items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, Emulated(module, form.rounding(input_max.get(name, 1.0))))
    return model


def calibrated(model: nn.Module, prompt: Sequence[int]) -> dict[str, float]:
    """The largest input of every linear in one run; some tokens of another run will pass it."""
    found: dict[str, float] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, given, name=name: found.__setitem__(name, float(given[0].abs().max()) * 0.9)
        )
        for name, module in layers_of(model).items()
    ]
    with torch.no_grad():
        model(input_ids=torch.tensor([list(prompt)]))
    for hook in hooks:
        hook.remove()
    return found


def load_plain(path: Path) -> Any:
    """What a file means, as a Transformers model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path)
    config._experts_implementation = "eager"
    return AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float32).eval()


def shaken(model: nn.Module) -> nn.Module:
    """The model with every matrix off by a part in 1,024, as the conformance kit allows stored weights to be."""
    model, random = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1 + 2.0**-10 * (torch.rand(parameter.shape, generator=random) * 2 - 1))
    return model


def num_differing(found: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]], model: Any) -> int:
    """How many tokens are not the model's best after those before them."""
    logits, count = logits_of(model), 0
    for tokens, prompt in zip(found, prompts, strict=True):
        best = logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :].argmax(axis=1)
        count += int((best != np.array(tokens)).sum())
    return count
