"""The reference platform: plain torch on the host."""
