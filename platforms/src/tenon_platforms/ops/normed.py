"""A norm together with the one op that reads its rows. Reference: `normed_reference.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .linear import MergedLinearSpec
from .mlp import GatedMLPSpec
from .norm import AddRMSNormSpec
from .spec import Spec


@dataclass(frozen=True, kw_only=True)
class AddRMSNormThenSpec(Spec):
    """Composite: `norm`, whose rows `then` alone reads: a platform may hand them over in a form of its own.

    The sum is read by others and keeps its dtype; the normalized rows may be quantized in the norm's launch, or never
    leave the device's registers.
    """

    op: ClassVar[str] = "add_rms_norm_then"
    norm: AddRMSNormSpec
    then: MergedLinearSpec | GatedMLPSpec
