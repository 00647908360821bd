"""Tables in the file of a Linux kernel: of initcalls, and of jump labels.

Each entry begins with the distance of an instruction from the entry
(CONFIG_HAVE_ARCH_PREL32_RELOCATIONS).
"""

from __future__ import annotations

import numpy as np

from kinst.image.elf import Elf


def _distances(elf: Elf, start: str, end: str, words: int) -> list[int]:
    """Return the linked addresses that the entries of a table begin with.

    Args:
        start: the symbol of the table's start.
        end: the symbol of its end.
        words: 32-bit words of an entry.
    """
    low, high = elf.address(start), elf.address(end)
    assert low is not None and high is not None
    distances = np.frombuffer(elf.read(low, high - low), np.int32)[::words].tolist()
    return [low + 4 * words * k + distance for k, distance in enumerate(distances)]


def initcalls(elf: Elf) -> list[int]:
    """Return the linked addresses of the kernel's initcalls (include/linux/init.h)."""
    return _distances(elf, "__initcall_start", "__initcall_end", 1)


def jump_labels(elf: Elf, function: str) -> list[int]:
    """Return the offsets of a function's jump labels (include/linux/jump_label.h)."""
    places = _distances(elf, "__start___jump_table", "__stop___jump_table", 4)
    low = elf.address(function)
    assert low is not None
    size = next(int(elf.symbols.size[k]) for k in elf.symbols.indexes(function))
    return sorted({at - low for at in places if low <= at < low + size})
