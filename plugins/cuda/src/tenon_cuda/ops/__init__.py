"""Kernels of the CUDA platform and their offers."""
