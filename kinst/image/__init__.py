"""Readers of a kernel's files: ELF symbols, BTF types, ORC tables, DWARF (rank 1 of the import
order).

DebugInfo (debug_info.py) reads the files of one image; LoadedImages (loaded_images.py) holds the
images of a running machine.
"""
