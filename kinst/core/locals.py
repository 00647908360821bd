"""Local variables at one instruction, from debug information.

Addresses and values are D expressions over regs[] (u64), so that a clause can compute them where
its probe fires (DWARF 5, section 2.6).

Tested by tests/sugar/test_locals.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class LocalPiece:
    """Consecutive bytes of a variable.

    Attributes:
        kind: "memory" (text is its address), "value" (text is its value) or "" (it is not
            available).
        text: a D expression.
        size: bytes; 0 for the whole variable.
    """

    kind: str
    text: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Local:
    """A variable or parameter at one instruction.

    Attributes:
        function: the function that declares it, inlined or not.
        pieces: in the order of its bytes; () if it cannot be read there.
        reason: why it cannot be read.
    """

    name: str
    type: DType
    function: str
    pieces: tuple[LocalPiece, ...] = ()
    reason: str = ""
