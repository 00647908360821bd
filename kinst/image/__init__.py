"""Rank 1: what files say of a kernel: ELF symbols, BTF types, ORC tables, DWARF.

debug_info.DebugInfo answers for one image; loaded.LoadedImages for those of a running machine.
"""
