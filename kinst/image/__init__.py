"""Rank 1: readers of a kernel's files: ELF symbols, BTF types, ORC tables, DWARF.

DebugInfo (debug_info.py) reads the files of one image; LoadedImages (loaded_images.py) holds the
images of a running machine.
"""
