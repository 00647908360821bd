"""Readers of a kernel's files: ELF symbols, BTF types, ORC tables, DWARF.

DebugInfo (debug_info.py) reads the files of one image; LoadedImages (loaded_images.py) holds the
images of a running machine. Rank 1: it imports only packages of rank 0 (docs/architecture.md).
"""
