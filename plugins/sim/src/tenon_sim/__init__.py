"""The simulated accelerator: a real torch device, `sim`, that is hostile on purpose and keeps an engine's core honest.

Importing this package imports neither torch nor the library in `native/`: a device that opens builds and loads it.
"""
