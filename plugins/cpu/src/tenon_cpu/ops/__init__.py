"""Kernels of the CPU platform, one file an op, named as the contract's spec files are."""
