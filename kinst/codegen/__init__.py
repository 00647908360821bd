"""Typed trees to LLVM IR to machine code, and the layout of what the code writes.  The only user of
llvmlite.
"""
