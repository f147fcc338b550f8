"""Kernel offers of the simulated device: where a reference kernel cannot be traced or must be queued."""
