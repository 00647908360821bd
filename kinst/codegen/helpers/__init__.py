"""Helper functions in LLVM IR that the code of clauses calls."""
