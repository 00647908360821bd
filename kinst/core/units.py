"""Units of time that values of a D program have: nanoseconds, and thousands of them.

Tested by tests/dlang/test_measures.py.
"""

from __future__ import annotations

UNITS = ("ns", "us", "ms", "s")  # each a thousand of the one before
_STEPS = {1_000**step: step for step in range(len(UNITS))}


def scaled(unit: str, divisor: int) -> str:
    """Return the unit of values that are divided by this number; "" if it has no name."""
    step = _STEPS.get(divisor)
    if unit not in UNITS or step is None or UNITS.index(unit) + step >= len(UNITS):
        return ""
    return UNITS[UNITS.index(unit) + step]
