"""The truth in float64, and how far from it the formula allows a kernel to be."""
