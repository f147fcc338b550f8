"""Triton kernels shared by Tenon's platforms: a library, not a platform.

It knows the contract, torch and triton, and no device by name; what a kernel must know of its device comes as data.
Importing this package imports none of them: take what you need from the subpackages.
"""

from __future__ import annotations
