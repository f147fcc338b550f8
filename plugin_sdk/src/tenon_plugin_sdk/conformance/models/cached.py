"""Transformers over a KV cache of another type: each key, after rotation, and each value as the cache would hold it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType

from ..cases.kept import kept
from ..truth.equality import Reference, logits_of

NAME = "tenon_cached"
SHAKEN = 2.0**-14  # relative: what float32 may do to a key and some, so that no fewer are rounded the other way
SEED = 1


def cached_reference(model: Any, kv: DType) -> Reference:
    """The reference over a cache of `kv`.

    narrow: what is rounded is off by `SHAKEN` first. A key that lies between two values of a coarse type goes to one or
    the other by an error that is float32's, and the tokens behind see the whole step: that is an error to measure.
    """
    narrow, wide = copy.deepcopy(model).float().eval(), copy.deepcopy(model).double().eval()
    for one, shaken in ((narrow, SHAKEN), (wide, 0.0)):
        one.set_attn_implementation(_registered(kv, shaken))
    return Reference(narrow=logits_of(narrow), wide=logits_of(wide))


def _registered(kv: DType, shaken: float) -> str:
    """The name under which Transformers knows such attention."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def forward(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        k, v = (kept(_off(part, shaken), kv).to(part.dtype) for part in (key, value))
        return sdpa_attention_forward(module, query, k, v, *args, **kwargs)

    name = f"{NAME}_{kv}_{'shaken' if shaken else 'exact'}".replace(".", "_")
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def _off(values: Tensor, shaken: float) -> Tensor:
    if not shaken:
        return values
    random = torch.Generator().manual_seed(SEED)
    return values * (1 + shaken * (torch.rand(values.shape, generator=random) * 2 - 1))
