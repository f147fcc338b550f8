"""Reasoning families: one small declaration each. Registered in the entry-point group `tenon.reasoning_parsers`."""
