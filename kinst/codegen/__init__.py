"""Code generation: compile the typed trees of a D program to LLVM IR and machine code, and lay out
the data that the code writes.  Only this package uses llvmlite.
"""
