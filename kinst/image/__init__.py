"""Rank 1: what files say about a kernel: ELF symbols, BTF types, ORC tables, DWARF.

debug_info.DebugInfo answers for one image; loaded_images.LoadedImages for those of a running
machine.
"""
