"""Tool-call families: one small declaration each. Registered in the entry-point group `tenon.tool_parsers`."""
