"""Stores to memory in the typed tree (typed.py has the rest of it)."""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import ArrayType, StringType, StructType
from kinst.dlang.typed import Binary, Cast, Expr, GlobalRead, KeyedRead, Variable


@dataclass(frozen=True, slots=True)
class Store(Expr):
    """*address = value, then the value (post: then what was there before).

    Only memory that the clause has allocated can be written (Dynamic Tracing Guide, "Pointers and
    Arrays"), and that of variables; any other address faults.  variable: the structure or array
    that the address lies in; then it must lie there, and nowhere else.  In value Before stands
    for what was at the address (of the innermost Store around it).
    bit, bits: as in typed.BitField; bits 0: no bit-field.
    root: of a dynamic variable (self->x, a[key]) its read, whose keys find the element; in address
    Root stands for the address of the element, which is made where there is none.
    A StringType is stored in its size, NULs behind it, cut if need be.
    """

    address: Expr
    value: Expr
    bit: int = 0
    bits: int = 0
    post: bool = False
    variable: Variable | None = None
    root: Expr | None = None


@dataclass(frozen=True, slots=True)
class Before(Expr):
    """What a Store's address holds before it."""


@dataclass(frozen=True, slots=True)
class Root(Expr):
    """In the address of a Store: where the element, or the Snapshot, begins."""


@dataclass(frozen=True, slots=True)
class Snapshot(Expr):
    """A structure that a translator has made: memory of the clause, zeros but for what the stores
    put there.  Its value is its address, as that of any structure.

    first: evaluated before, or None.  stores: their addresses are counted from Root."""

    first: Expr | None
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Shared(Expr):
    """The address of a variable, or of a part of one, as a pointer that may be kept: it is the
    same number in the traced kernel and on the host, which see the variables at two places."""

    operand: Expr


def root_of(address: Expr) -> Expr | None:
    """The read of the structure, array or string variable that an address is made of; None for
    all others."""
    while True:
        if isinstance(address.type, StructType | ArrayType):
            return address
        if isinstance(address, GlobalRead | KeyedRead) and isinstance(address.type, StringType):
            return address
        if isinstance(address, Cast | Shared):
            address = address.operand
        elif isinstance(address, Binary):
            address = address.left
        else:
            return None
