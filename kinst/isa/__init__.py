"""Rank 1: one file or folder for each instruction set; the only user of the disassembler."""
