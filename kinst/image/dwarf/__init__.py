"""DWARF of one file: the index, entries, types, locations, call frames and lines.

index.py needs the standard library alone; scan/, which numba compiles, is imported by build.py
only, where there is no index yet.
"""
