"""Units of time of values in a D program, and short texts of numbers with their units.

Tested by tests/views/test_scales.py and tests/dlang/check/test_measures.py."""

from __future__ import annotations

from collections.abc import Sequence

UNITS = ("ns", "us", "ms", "s")  # each is a thousand times the unit before
_TIMES = ("ns", "µs", "ms", "s")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_ROUNDING = 1e-9  # relative error of floating-point numbers that is tolerated
_STEPS = {1_000**step: step for step in range(len(UNITS))}


def scaled(unit: str, divisor: int) -> str:
    """Return the unit of values in `unit` after a division by `divisor` ("us" for "ns" and 1000);
    "" if it has no name."""
    step = _STEPS.get(divisor)
    if unit not in UNITS or step is None or UNITS.index(unit) + step >= len(UNITS):
        return ""
    return UNITS[UNITS.index(unit) + step]


def counted(number: int, one: str, several: str = "", spec: str = "") -> str:
    """Return a number with its noun as text: 1 probe, 2 probes.

    Args:
        one: the noun after the number 1.
        several: the noun after every other number; `one` with an s if empty.
        spec: format of the number ("," for 12,345).
    """
    return f"{number:{spec}} {one if number == 1 else several or f'{one}s'}"


def count_text(value: float) -> str:
    """Return a number as short text without a unit: 950, 1.5k, 20M."""
    return _with_prefix(value, 1000, _DECIMAL)


def value_text(value: float, unit: str) -> str:
    """Return a number as short text with its unit: 20 µs, 1.5 ms; without a unit if the unit is not
    known: 64k."""
    if unit not in UNITS:
        return count_text(value)
    if not value:
        return "0"
    value, power = float(value), UNITS.index(unit)
    while abs(value) >= 1000 * (1 - _ROUNDING) and power < len(_TIMES) - 1:
        value, power = value / 1000, power + 1
    while 0 < abs(value) < 1 and power:
        value, power = value * 1000, power - 1
    return f"{_short(value)} {_TIMES[power]}"


def binary_text(value: float) -> str:
    """Return a number as short text with a binary prefix: 64Ki."""
    return _with_prefix(value, 1024, _BINARY)


def _with_prefix(value: float, base: int, prefixes: Sequence[str]) -> str:
    power, scaled_value = 0, float(value)
    while abs(scaled_value) >= base and power < len(prefixes) - 1:
        scaled_value, power = scaled_value / base, power + 1
    return f"{_short(scaled_value)}{prefixes[power]}"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
