"""What actions of the typed tree print with and aggregate in (typed.py has the actions)."""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class FormatPart:
    """One piece of a printf format.

    literal: text before the conversion (escapes and %% already done).  conversion: "" for the
    trailing literal, else the conversion letter without length modifiers ("d", "x", "s",
    "Y", ...), with "@" before it where printa() prints the aggregated value ("@d").  flags,
    width, precision as written; "*" stands for an argument of its own, which then comes before
    the value in the argument list.
    """

    literal: bytes
    conversion: str = ""
    flags: str = ""
    width: int | str | None = None
    precision: int | str | None = None
    size: int = 0  # bytes of the converted integer by its argument's type; 0: not an integer


@dataclass(frozen=True, slots=True)
class Format:
    text: str
    parts: tuple[FormatPart, ...]


@dataclass(frozen=True, slots=True)
class AggFunction:
    """count sum min max avg stddev quantize lquantize llquantize.

    params: lquantize (base, limit, step); llquantize (factor, low, high, nsteps).
    """

    name: str
    params: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation variable; name without the "@" ("" for the anonymous one, printed "@")."""

    name: str
    index: int
    keys: tuple[DType, ...]
    function: AggFunction
    signed: bool = True  # of the aggregated value
