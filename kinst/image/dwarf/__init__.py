"""DWARF of one file: the index, entries, types, locations, call frames and lines.

index.py needs the standard library alone; scan/, which numba compiles, is imported only by
build.py, when there is no index yet.
"""
