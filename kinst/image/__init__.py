"""Rank 1: what files say of a kernel: ELF symbols and tables, BTF types, ORC unwind rules."""
