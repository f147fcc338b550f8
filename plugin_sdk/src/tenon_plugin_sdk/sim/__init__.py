"""The simulated accelerator: a hostile device on plain CPU tensors that keeps an engine's core honest."""
