"""The kernel's text at two moments, and how it differs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinst.core.columns import I64, Bools
from kinst.patch.patches import Patches


@dataclass(frozen=True, slots=True)
class LiveText:
    """The kernel's text at one moment: bytes from `address` on."""

    address: int
    data: bytes

    def holds(self, patches: Patches) -> Bools:
        """Which patches lie in it; modules lie outside of the kernel's own text."""
        start = self.offsets(patches)
        return (start >= 0) & (start + patches.size <= len(self.data))

    def offsets(self, patches: Patches) -> I64:
        """Where in it the patches lie."""
        return (patches.address - np.uint64(self.address)).view(np.int64)


NO_TEXT = LiveText(0, b"")


def compared(before: LiveText, after: LiveText) -> str:
    """How the kernel's text compares to what it was, in a sentence."""
    size = len(before.data)
    if before.data == after.data:
        return f"kernel text is as before ({size} bytes compared)"
    pairs = np.frombuffer(before.data, np.uint8) != np.frombuffer(after.data, np.uint8)
    where = np.flatnonzero(pairs)
    return (
        f"the kernel itself changed {len(where)} of {size} bytes of its text meanwhile, "
        f"the first at {before.address + int(where[0]):#x}; kinst's patches are all undone"
    )
