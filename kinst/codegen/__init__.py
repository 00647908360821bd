"""Rank 2: record layout, lowering to LLVM IR, machine code; the only user of llvmlite."""
