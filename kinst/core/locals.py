"""Where local variables are: what the debug information says of one instruction.

Addresses and values are given as D expressions over regs[] (u64), so that a clause can compute
them where its probe fires (DWARF 5, section 2.6).

Tested by tests/sugar/test_locals.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a variable's bytes.  kind: "memory" (text is its address), "value" (text is its
    value) or "" (not there).  size: bytes; 0 where it is the whole variable."""

    kind: str
    text: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Local:
    """A variable or parameter at one instruction.

    function: the one it is declared in, inlined or not.  pieces: in order of its bytes; () where
    it cannot be read there, and `reason` says why."""

    name: str
    type: DType
    function: str
    pieces: tuple[Piece, ...] = ()
    reason: str = ""
