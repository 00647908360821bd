"""DWARF of one file: index, debugging information entries (DIEs), types, locations, call frames,
lines.

index.py needs the standard library alone. scan/, which numba compiles, is imported only by
build.py, and build.py only if a file has no saved index yet.

Tested by tests/image/dwarf/test_index.py.
"""
