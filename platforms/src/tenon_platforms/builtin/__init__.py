"""Platforms that come with the contract: the reference, and null for measuring host cost."""
