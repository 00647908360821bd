"""Compile typed trees to LLVM IR and machine code, and lay out the data that the code writes.
Nothing else uses llvmlite.
"""
