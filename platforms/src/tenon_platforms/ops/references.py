"""Which function is the reference of which op. Strings, so that listing imports nothing.

A reference factory is `factory(spec, table, *context) -> Kernel`. A *composite*'s reference decomposes: it asks the
table for its parts, so a platform that offers the parts is used inside it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A lazily imported reference. `composite`: it runs its parts' kernels and has no arithmetic of its own."""

    factory: str
    composite: bool = False


def _here(target: str, *, composite: bool = False) -> Reference:
    return Reference(factory=f"tenon_platforms.ops.{target}", composite=composite)


REFERENCES: dict[str, Reference] = {
    "rms_norm": _here("norm_reference:rms_norm"),
    "add_rms_norm": _here("norm_reference:add_rms_norm", composite=True),
    "add_rms_norm_then": _here("normed_reference:add_rms_norm_then", composite=True),
    "layer_norm": _here("norm_reference:layer_norm"),
    "merged_linear": _here("linear_reference:merged_linear"),
    "embedding": _here("embedding_reference:embedding"),
    "rope": _here("rope_reference:rope"),
    "qk_norm_rope_kv_write": _here("rope_reference:qk_norm_rope_kv_write", composite=True),
    "activation_mul": _here("mlp_reference:activation_mul"),
    "gated_mlp": _here("mlp_reference:gated_mlp", composite=True),
    "mlp": _here("mlp_reference:mlp"),
    "mean_pool": _here("pooling_reference:mean_pool"),
    "moe_layer": _here("moe_reference:moe_layer"),
    "sampler": _here("sampling_reference:sampler"),
    "token_logprobs": _here("sampling_reference:token_logprobs"),
    "attention": _here("attention_reference:attention"),
    "prepare_inputs": _here("rows_reference:prepare_inputs"),
    "row_writes": _here("rows_reference:row_writes"),
}
