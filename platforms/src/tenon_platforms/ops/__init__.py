"""Op specs with their reference kernels beside them, and the table that chooses kernels. Specs are torch-free."""
