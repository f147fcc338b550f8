"""How calls and thoughts are written, each way once. Families (`tools/`, `reasoning/`) fill in the marks."""
