"""Storage formats both sides of the contract speak: GGUF block types."""
