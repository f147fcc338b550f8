"""Level 4 by subject: what stays behind, the books of blocks, and being short of memory."""
