"""DWARF of one file: index, debugging information entries (DIEs), types, locations, call frames,
lines.

index.py needs the standard library alone. scan/, which numba compiles, is imported only by
build.py, and build.py only if a file has no saved index yet.

Tested by tests/image/dwarf/test_index.py.
"""

from __future__ import annotations

from kinst.core.paths import cache_folder


def indexing() -> str:
    """Return what kinst does while it makes an index, in words for its progress.

    In a new cache, the scan must be compiled first, which takes longer than the index of a small
    program.
    """
    if any((cache_folder() / "compiled").glob("*/*/*.nbc")):
        return "indexing debug information"
    return "compiling the reader of debug information (once), and indexing"
