"""Generators of cases: what is tried. Torch-free where shapes and specs are enough."""
