"""Values for the local variables at one instruction, from debug information.

Addresses and values are D expressions over regs[] (u64), so that a clause can compute them when its
probe fires (DWARF 5, section 2.6).

Tested by tests/sugar/test_locals.py."""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class LocalPiece:
    """Consecutive bytes of a local variable, and how to read them.

    Attributes:
        kind: "memory" (`text` is the address of the bytes), "value" (`text` is their value) or ""
            (they are not available).
        text: a D expression.
        size: number of bytes; 0 for the whole variable.
    """

    kind: str
    text: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Local:
    """A local variable or parameter at one instruction.

    Attributes:
        function: name of the function that declares the variable; that function may be inlined.
        pieces: the variable's bytes, in order; () if the variable cannot be read at this
            instruction.
        reason: why the variable cannot be read.
    """

    name: str
    type: DType
    function: str
    pieces: tuple[LocalPiece, ...] = ()
    reason: str = ""
