"""Pointers in the data of an image that moves itself at boot: the linker may leave them empty and
put their values into .rela.dyn (ld's --no-apply-dynamic-relocs, as arm64's Linux is linked).

Format: System V ABI, "Relocation"; the type is R_*_RELATIVE of each processor's supplement.
"""

from __future__ import annotations

import numpy as np

from kinst.image.elf import Elf

_RELA = np.dtype([("place", "<u8"), ("kind", "<u8"), ("value", "<u8")])
_RELATIVE = (8, 1027, 3)  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE, R_RISCV_RELATIVE


def pointers(elf: Elf, address: int, raw: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The u64 of a table of pointers, as linked: `raw`, the file's bytes at `address`, with what
    relocations put there."""
    words = np.frombuffer(raw, dtype="<u8").astype(np.uint64)
    section = elf.section(".rela.dyn")
    if section is None or not len(words):
        return words
    data = elf.data(section)
    rows = np.frombuffer(data, dtype=_RELA, count=len(data) // _RELA.itemsize)
    end = np.uint64(address + len(raw))
    rows = rows[(rows["place"] >= np.uint64(address)) & (rows["place"] < end)]
    rows = rows[np.isin(rows["kind"], _RELATIVE)]
    words[((rows["place"] - np.uint64(address)) // np.uint64(8)).astype(np.int64)] = rows["value"]
    return words
