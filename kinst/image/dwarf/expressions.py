"""DWARF location expressions as D expressions over regs[] (DWARF 5, sections 2.5 and 2.6).

The stack machine of DWARF is run when a probe is compiled; its stack holds D text instead of
numbers. Values are u64 (DWARF's generic type), or of the base types that typed operations name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.locals import LocalPiece
from kinst.core.words import MASK
from kinst.image.dwarf.reader import Reader

OP_ADDR, OP_DEREF, OP_CONST1U, OP_CONSTU, OP_CONSTS = 0x03, 0x06, 0x08, 0x10, 0x11
OP_DUP, OP_DROP, OP_OVER, OP_PICK, OP_SWAP, OP_ROT = 0x12, 0x13, 0x14, 0x15, 0x16, 0x17
OP_ABS, OP_NEG, OP_NOT, OP_PLUS_UCONST = 0x19, 0x1F, 0x20, 0x23
OP_BRA, OP_SKIP = 0x28, 0x2F
OP_LIT0, OP_REG0, OP_BREG0, OP_REGX, OP_FBREG, OP_BREGX = 0x30, 0x50, 0x70, 0x90, 0x91, 0x92
OP_PIECE, OP_DEREF_SIZE, OP_NOP, OP_CALL_FRAME_CFA = 0x93, 0x94, 0x96, 0x9C
OP_BIT_PIECE, OP_IMPLICIT_VALUE, OP_STACK_VALUE = 0x9D, 0x9E, 0x9F
OP_IMPLICIT_POINTER, OP_ADDRX, OP_CONSTX, OP_ENTRY_VALUE = 0xA0, 0xA1, 0xA2, 0xA3
OP_CONST_TYPE, OP_REGVAL_TYPE, OP_DEREF_TYPE = 0xA4, 0xA5, 0xA6
OP_CONVERT, OP_REINTERPRET = 0xA8, 0xA9
OP_GNU_UNINIT = 0xF0
# GNU's numbers for operations that DWARF 5 adopted.
GNU = {0xF2: 0xA0, 0xF3: 0xA3, 0xF4: 0xA4, 0xF5: 0xA5, 0xF6: 0xA6, 0xF7: 0xA8, 0xF9: 0xA9}
_UNSIGNED = {0x1A: "&", 0x1D: "%", 0x1E: "*", 0x21: "|", 0x22: "+", 0x1C: "-", 0x24: "<<",
             0x25: ">>", 0x27: "^"}  # fmt: skip
_SIGNED = {0x1B: "/", 0x26: ">>"}
_COMPARE = {0x29: "==", 0x2A: ">=", 0x2B: ">", 0x2C: "<=", 0x2D: "<", 0x2E: "!="}
MOST_FORKS = 6
MOST_TEXT = 4000  # characters: bounds an expression that doubles itself


class NotHereError(Exception):
    """A variable's value is not available at an instruction; the message says why."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base type that typed DWARF operations name; an integer type.

    Attributes:
        size: bytes.
        signed: whether it is signed.
    """

    size: int
    signed: bool

    @property
    def text(self) -> str:
        return f"{'' if self.signed else 'u'}int{8 * self.size}_t"


GENERIC = Base(8, False)


@dataclass(frozen=True, slots=True)
class ExpressionContext:
    """Values that a DWARF expression may use. The functions raise NotHereError for values that are
    not known.

    Attributes:
        registers: D names by DWARF number.
        frame_base: returns the function's frame base as D text.
        frame_address: returns the canonical frame address (CFA) as D text.
        at_entry: whether the instruction is the first of its function, so that registers still have
            the values that they had at entry.
        base: returns the base type at an offset of the unit; the generic type for offset 0.
        indexed: returns the address at an index of .debug_addr.
        running_address: maps a linked address to the running address.
        entry: takes a register's DWARF number; returns the register's value at the function's entry
            as D text. None if kinst cannot compute entry values for this expression.
        caller: takes a register's DWARF number; returns the register's value in the caller as D
            text. None unless the expression belongs to a call site. Expressions of call sites must
            not load memory: the caller's memory may have changed since the call.
    """

    registers: Sequence[str]
    frame_base: Callable[[], str]
    frame_address: Callable[[], str]
    at_entry: bool
    base: Callable[[int], Base]
    indexed: Callable[[int], int]
    running_address: Callable[[int], int]
    entry: Callable[[int], str] | None = None
    caller: Callable[[int], str] | None = None


@dataclass(frozen=True, slots=True)
class _Value:
    text: str
    base: Base = GENERIC


class _Machine(Reader):
    def __init__(self, code: bytes | memoryview, context: ExpressionContext) -> None:
        super().__init__(code)
        self.context = context
        self.stack: list[_Value] = []
        # A register or a value; None while the location is the address on the stack.
        self.piece: LocalPiece | None = None
        self.pieces: list[LocalPiece] = []
        self.forks = 0

    def push(self, text: str, base: Base = GENERIC) -> None:
        if len(text) > MOST_TEXT:
            raise NotHereError("its location is too long an expression")
        self.stack.append(_Value(text, base))

    def pop(self) -> _Value:
        if not self.stack:
            raise NotHereError("its location is damaged")
        return self.stack.pop()

    def register(self, number: int) -> str:
        if self.context.caller is not None:
            return self.context.caller(number)
        names = self.context.registers
        if number >= len(names) or not names[number]:
            raise NotHereError(f"it is in a register that probes do not have ({number})")
        return f"regs[{names[number]}]"

    def run(self) -> tuple[LocalPiece, ...]:
        while self.left():
            op = self.number(1)
            self.step(GNU.get(op, op))
        if self.pieces:
            return tuple(self.pieces)
        return (self.taken(0),)

    def branch(self) -> None:
        """Execute DW_OP_bra: run both branches to their ends, and make a D conditional of the two
        results."""
        offset = self.number(2, signed=True)
        condition = self.pop().text
        if offset < 0 or self.forks >= MOST_FORKS or self.pieces:
            raise NotHereError("its location is too long an expression")
        ends = []
        for start in (self.at + offset, self.at):
            way = _Machine(self.data, self.context)
            way.at, way.forks, way.stack = start, self.forks + 1, list(self.stack)
            ends.append(way.run())
        yes, no = ends[0][0], ends[1][0]
        if any(len(end) != 1 for end in ends) or yes.kind != no.kind:
            raise NotHereError("its location is too long an expression")
        text = f"({condition} ? {yes.text} : {no.text})"
        if len(text) > MOST_TEXT:
            raise NotHereError("its location is too long an expression")
        self.at, self.stack = len(self.data), []
        self.piece = LocalPiece(yes.kind, text)

    def taken(self, size: int) -> LocalPiece:
        """Remove the result so far from this object, and return it as a piece of the variable.

        The result is the register or value that an operation has named. Otherwise it is the memory
        at the address on top of the stack. If the stack is empty too, the piece is empty: the
        compiler has optimised it out.

        Args:
            size: bytes of the piece, 0 for the whole variable.
        """
        piece, self.piece = self.piece, None
        if piece is not None:
            return LocalPiece(piece.kind, piece.text, size)
        if not self.stack:
            return LocalPiece("", "", size)
        return LocalPiece("memory", self.pop().text, size)

    def step(self, op: int) -> None:
        if OP_LIT0 <= op < OP_LIT0 + 32:
            self.push(constant(op - OP_LIT0))
        elif OP_REG0 <= op < OP_REG0 + 32:
            self.piece = LocalPiece("value", self.register(op - OP_REG0))
        elif OP_BREG0 <= op < OP_BREG0 + 32:
            self.push(added(self.register(op - OP_BREG0), self.sleb()))
        elif OP_CONST1U <= op < OP_CONST1U + 8:
            size = 1 << (op - OP_CONST1U) // 2
            self.push(constant(self.number(size, signed=bool(op & 1))))
        elif op in _UNSIGNED or op in _SIGNED or op in _COMPARE:
            self.binary(op)
        elif op in _PLAIN:
            _PLAIN[op](self)
        else:
            raise NotHereError(f"its location needs DW_OP {op:#x}, which kinst does not have")

    def binary(self, op: int) -> None:
        b, a = self.pop(), self.pop()
        base = a.base
        signed = Base(base.size, True) if base == GENERIC else base
        if op in _COMPARE:
            left, right = f"({signed.text}){a.text}", f"({signed.text}){b.text}"
            self.push(f"((uint64_t)({left} {_COMPARE[op]} {right}))")
        elif op in _SIGNED:
            left, right = f"({signed.text}){a.text}", f"({signed.text}){b.text}"
            self.push(f"(({base.text})({left} {_SIGNED[op]} {right}))", base)
        elif base == GENERIC:
            self.push(f"({a.text} {_UNSIGNED[op]} {b.text})")
        else:
            self.push(f"(({base.text})({a.text} {_UNSIGNED[op]} {b.text}))", base)

    def entry_value(self) -> None:
        size = self.uleb()
        inner = self.take(size)
        if not self.context.at_entry:
            number = _register_in(inner)
            if self.context.entry is None or number is None:
                raise NotHereError("only its value at the function's entry is known")
            self.push(self.context.entry(number))
            return
        pieces = _Machine(inner, self.context).run()
        if len(pieces) != 1 or pieces[0].kind != "value":
            raise NotHereError("its location is an entry value of more than a register")
        self.push(pieces[0].text)


def _register_in(code: bytes) -> int | None:
    """Return the DWARF number of the register that an expression names; None if the expression does
    anything else."""
    if len(code) == 1 and OP_REG0 <= code[0] < OP_REG0 + 32:
        return code[0] - OP_REG0
    return code[1] if len(code) == 2 and code[0] == OP_REGX and code[1] < 128 else None


def constant(value: int) -> str:
    """Return the D text of a constant of DWARF's generic type."""
    return f"{value & MASK:#x}ull"


def added(text: str, offset: int) -> str:
    if not offset:
        return text
    if abs(offset) >> 31:
        return f"({text} + {constant(offset)})"
    return f"({text} {'+' if offset > 0 else '-'} {abs(offset)})"


def _fbreg(m: _Machine) -> None:
    offset = m.sleb()
    m.push(added(m.context.frame_base(), offset))


def _may_load(m: _Machine) -> None:
    if m.context.caller is not None:
        raise NotHereError("its caller had it in memory")


def _deref(m: _Machine) -> None:
    _may_load(m)
    m.push(f"(*(uint64_t *){m.pop().text})")


def _deref_size(m: _Machine) -> None:
    size = m.number(1)
    _may_load(m)
    if size not in (1, 2, 4, 8):
        raise NotHereError("its location is damaged")
    m.push(f"((uint64_t)*(uint{8 * size}_t *){m.pop().text})")


def _pick(m: _Machine, depth: int) -> None:
    if depth >= len(m.stack):
        raise NotHereError("its location is damaged")
    value = m.stack[-1 - depth]
    m.push(value.text, value.base)


def _rotate(m: _Machine, count: int) -> None:
    if len(m.stack) < count:
        raise NotHereError("its location is damaged")
    m.stack.insert(len(m.stack) - count, m.stack.pop())


def _unary(m: _Machine, form: str) -> None:
    a = m.pop()
    text = form.format(a.text, a.base.text)
    m.push(text if a.base == GENERIC else f"(({a.base.text}){text})", a.base)


def _piece(m: _Machine) -> None:
    m.pieces.append(m.taken(m.uleb()))


def _implicit(m: _Machine) -> None:
    size = m.uleb()
    if size > 8:
        raise NotHereError("it is a constant of more than 8 bytes")
    m.piece = LocalPiece("value", constant(m.number(size)))


def _stack_value(m: _Machine) -> None:
    value = m.pop()
    m.piece = LocalPiece("value", value.text)


def _typed_constant(m: _Machine) -> None:
    base, size = m.context.base(m.uleb()), m.number(1)
    value = m.number(size, base.signed)
    m.push(f"(({base.text}){constant(value)})", base)


def _typed_register(m: _Machine) -> None:
    name = m.register(m.uleb())
    base = m.context.base(m.uleb())
    m.push(f"(({base.text}){name})", base)


def _typed_deref(m: _Machine) -> None:
    m.number(1)
    base = m.context.base(m.uleb())
    _may_load(m)
    m.push(f"(*({base.text} *){m.pop().text})", base)


def _convert(m: _Machine) -> None:
    base, value = m.context.base(m.uleb()), m.pop()
    m.push(f"(({base.text}){value.text})", base)


def _refuse(reason: str) -> Callable[[_Machine], None]:
    def refuse(m: _Machine) -> None:
        raise NotHereError(reason)

    return refuse


def _drop(m: _Machine) -> None:
    m.pop()


def _skip(m: _Machine) -> None:
    offset = m.number(2, signed=True)
    if offset < 0:
        raise NotHereError("its location is too long an expression")
    m.at += offset


def _plus(m: _Machine) -> None:
    offset = m.uleb()
    m.push(added(m.pop().text, offset))


def _register_x(m: _Machine) -> None:
    m.piece = LocalPiece("value", m.register(m.uleb()))


def _breg_x(m: _Machine) -> None:
    name = m.register(m.uleb())
    m.push(added(name, m.sleb()))


_PLAIN: dict[int, Callable[[_Machine], None]] = {
    OP_ADDR: lambda m: m.push(constant(m.context.running_address(m.number(8)))),
    OP_ADDRX: lambda m: m.push(constant(m.context.running_address(m.context.indexed(m.uleb())))),
    OP_CONSTX: lambda m: m.push(constant(m.context.indexed(m.uleb()))),
    OP_DEREF: _deref,
    OP_DEREF_SIZE: _deref_size,
    OP_CONSTU: lambda m: m.push(constant(m.uleb())),
    OP_CONSTS: lambda m: m.push(constant(m.sleb())),
    OP_DUP: lambda m: _pick(m, 0),
    OP_DROP: _drop,
    OP_OVER: lambda m: _pick(m, 1),
    OP_PICK: lambda m: _pick(m, m.number(1)),
    OP_SWAP: lambda m: _rotate(m, 2),
    OP_ROT: lambda m: _rotate(m, 3),
    OP_ABS: lambda m: _unary(m, "((int64_t){0} < 0 ? -{0} : {0})"),
    OP_NEG: lambda m: _unary(m, "(-{0})"),
    OP_NOT: lambda m: _unary(m, "(~{0})"),
    OP_PLUS_UCONST: _plus,
    OP_REGX: _register_x,
    OP_FBREG: _fbreg,
    OP_BREGX: _breg_x,
    OP_PIECE: _piece,
    OP_NOP: lambda m: None,
    # The variable's location; gcc adds that it is not initialised on every path there.
    OP_GNU_UNINIT: lambda m: None,
    OP_BRA: _Machine.branch,
    OP_SKIP: _skip,
    OP_CALL_FRAME_CFA: lambda m: m.push(m.context.frame_address()),
    OP_IMPLICIT_VALUE: _implicit,
    OP_STACK_VALUE: _stack_value,
    OP_ENTRY_VALUE: _Machine.entry_value,
    OP_CONST_TYPE: _typed_constant,
    OP_REGVAL_TYPE: _typed_register,
    OP_DEREF_TYPE: _typed_deref,
    OP_CONVERT: _convert,
    OP_REINTERPRET: _convert,
    OP_IMPLICIT_POINTER: _refuse("it points to a variable that is optimised out"),
    OP_BIT_PIECE: _refuse("its location has pieces of single bits"),
}


def value_of(code: bytes, context: ExpressionContext) -> str:
    """Return, as D text, the value that a DWARF expression computes; the expression describes a
    value, not a location (DW_AT_call_value). Raises NotHereError if the value is not known."""
    (piece, *more) = _Machine(code, context).run()
    if more or not piece.kind:
        raise NotHereError("its caller's debug information does not say what it was")
    return piece.text


def pieces_of(code: bytes, context: ExpressionContext) -> tuple[LocalPiece, ...]:
    """Return the pieces of a variable as D text, given its DWARF location expression. Raises
    NotHereError if the variable is not available."""
    if not code:
        raise NotHereError("it is optimised out")
    try:
        pieces = _Machine(code, context).run()
    except (IndexError, ValueError):
        raise NotHereError("its location is damaged") from None
    if all(not piece.kind for piece in pieces):
        raise NotHereError("it is optimised out")
    return pieces
