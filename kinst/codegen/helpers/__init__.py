"""Functions in LLVM IR that lowered code calls."""
