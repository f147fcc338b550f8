"""Quantized safetensors checkpoints: from a `quantization_config` and stored tensors to the contract's schemes."""
