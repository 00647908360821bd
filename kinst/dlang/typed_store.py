"""Stores to memory in the typed tree (typed.py has the rest of it)."""

from __future__ import annotations

from dataclasses import dataclass

from kinst.dlang.typed import Expr, Variable


@dataclass(frozen=True, slots=True)
class Store(Expr):
    """*address = value, then the value (post: then what was there before).

    Only memory that the clause has allocated can be written (Dynamic Tracing Guide, "Pointers and
    Arrays"); any other address faults.  variable: the structure, or array of structures, that the
    address lies in; then it must lie there, and not in allocated memory.  In value Before stands
    for what was at the address (of the innermost Store around it).
    bit, bits: as in typed.BitField; bits 0: no bit-field.
    """

    address: Expr
    value: Expr
    bit: int = 0
    bits: int = 0
    post: bool = False
    variable: Variable | None = None


@dataclass(frozen=True, slots=True)
class Before(Expr):
    """What a Store's address holds before it."""
