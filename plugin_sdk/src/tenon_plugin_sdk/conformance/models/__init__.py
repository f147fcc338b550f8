"""Tiny checkpoints made by Transformers, and GGUF files of them: what engines are compared on."""
