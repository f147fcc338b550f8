"""Triton kernels by op, named as the contract's spec files are. `offers.py` registers them for a platform."""
