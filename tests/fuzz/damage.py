"""Damage to files, drawn from a seed: like the effects of crashes, full disks and bad memory."""

from __future__ import annotations

import os
import random

# Typical values of bad offsets, counts and lengths.
BAD = (
    bytes(8), b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 4, b"\x80" * 9 + b"\1",
    b"\xf0\xff\xff\xff", b"\1", b"\x7f", b"\0" * 64,
)  # fmt: skip
SEED = int(os.environ.get("KINST_SEED", "1"))
DRAW_ANEW = bool(os.environ.get("KINST_RANDOM"))  # make test-all


def chance(seed: int = SEED) -> random.Random:
    """Return random numbers that are the same in every run; with KINST_RANDOM they are new, and
    the seed is printed."""
    if DRAW_ANEW:
        seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def damaged(data: bytes, draw: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Return a damaged version.

    Args:
        others: whole files that may replace it.
    """
    kind = draw.randrange(10)
    if kind == 0:
        return data[: draw.randrange(len(data) + 1)]
    if kind == 1:
        return data + draw.randbytes(draw.randrange(1, 64))
    if kind == 2 and others:
        return draw.choice(others)
    if kind == 3:
        # A page that was never written to the disk.
        at = draw.randrange(len(data)) & -512
        return data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]
    if kind == 4:
        at, size = draw.randrange(len(data)), draw.randrange(1, 100)
        return data[:at] + data[at + size :]
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 30))):
        at = draw.randrange(len(out))
        if draw.randrange(3):
            out[at] ^= 1 << draw.randrange(8)
        else:
            bad = draw.choice(BAD)
            out[at : at + len(bad)] = bad[: len(out) - at]
    return bytes(out)
