"""Checkpoints: finding them, reading them with every index checked, their tokenizers and chat templates."""
