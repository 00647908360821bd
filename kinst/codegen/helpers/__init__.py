"""Functions in LLVM IR that the code of clauses calls."""
