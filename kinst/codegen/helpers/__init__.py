"""Functions in LLVM IR that the code of clauses calls, and what they are made of."""
