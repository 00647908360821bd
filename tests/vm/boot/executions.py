"""Plugin of QEMU that counts executions of instructions of a guest's kernel (tests/c/executions.c).

It is part of QEMU's code generator, and knows nothing of breakpoints or of kinst.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from kinst.core.words import MASK

SOURCE = Path(__file__).parents[2] / "c" / "executions.c"
MOVED_BY = 2 << 20  # KASLR moves a kernel by multiples of this


class Executions:
    """Counts of executions in one QEMU.

    Attributes:
        arguments: QEMU's arguments.
    """

    def __init__(self, folder: Path, addresses: Iterable[int], last: int | None = None) -> None:
        """Build the plugin.

        Args:
            folder: folder for its files.
            addresses: linked addresses of the instructions to count.
            last: linked address of the instruction after which nothing is counted any more; None to
                count up to the end. The first of the counted instructions must run before it.
        """
        addresses = list(addresses)
        plugin, offsets, self._counts = folder / "plugin.so", folder / "offsets", folder / "counts"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", plugin, SOURCE], check=True)
        offsets.write_text("".join(f"{address % MOVED_BY:x}\n" for address in addresses))
        options = f"{plugin},offsets={offsets},counts={self._counts}"
        if last is not None:
            options += f",last={last % MOVED_BY:x},apart={last - addresses[0] & MASK:x}"
        self.arguments = ("-plugin", options)

    def read(self) -> dict[int, int]:
        """Return how often each instruction has been executed, by its running address."""
        rows = np.frombuffer(self._counts.read_bytes(), np.uint64).reshape(-1, 2)
        return {address: count for address, count in rows.tolist() if count}
