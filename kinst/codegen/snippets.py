"""Pure expressions compiled to snippets: machine code without a stack frame, which runs inside a
trampoline.

A pure expression depends only on the registers at the site, on arguments of the probe, on constants
and on the current thread.  It can neither fault nor loop.  It may read the thread's task structure
and credentials: they stay mapped while the thread runs, since only the thread itself replaces its
credentials.  (ppid is not pure: another CPU may free the parent's structure unless interrupts are
off.)  The thread may be interrupted in a snippet, and may move to another CPU: this changes the
value of no pure expression, except for `cpu`, which is the CPU at the moment of reading.

A guard is a pure predicate.  If a guard holds, the trampoline either calls the clause, which tests
the whole predicate again, or increments a counter by one instruction.

The LLVM function of a snippet begins and ends with inline assembly that has no instructions: LLVM
has no other way to name registers.  The assembly at the start has the registers at the site as its
outputs, so LLVM takes the values from these registers.  The assembly at the end has the result as
its input, so LLVM puts the result in a chosen register.  The function is naked and ends in
`unreachable`: it saves nothing, and control continues after its last instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from kinst.codegen.analysis import OF_THREAD, register_slot
from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.compile import compile_functions
from kinst.codegen.firing import Text, read_access
from kinst.codegen.helpers.key_slots import counter_of
from kinst.codegen.layout.variable_places import bits_of
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.bodies import Snippet
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import IntType, PointerType, StringType
from kinst.core.isa import Isa
from kinst.core.layout import (
    ARGUMENT_CONSTANT,
    ARGUMENT_POINTED,
    ARGUMENT_SLOT,
    POINTED_SHIFT,
    POINTED_SLOT,
)
from kinst.core.probe import Argument
from kinst.core.records import AggregationLayout
from kinst.dlang import typed

_PLAIN = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
_COMPARE = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


class _ImpureError(Exception):
    """Error: an expression is not pure."""


@dataclass(slots=True)
class _Writer:
    """Generator of one snippet.

    Attributes:
        machine: the machine that runs the code.
        isa: the kernel's ISA.
        arguments: where arg0, arg1, ... are at the site.
        code: the LLVM function under construction.
        registers: the value of each frame slot that the snippet reads.
    """

    machine: CodeMachine
    isa: Isa
    arguments: Sequence[Argument]
    code: IrFunction
    registers: dict[int, IrValue] = field(default_factory=dict)

    def register(self, slot: int) -> IrValue:
        if slot not in self.isa.snippets.names:
            raise _ImpureError
        return self.registers.setdefault(slot, IrValue(64, f"%register.{slot}"))

    def value(self, expr: typed.Expr) -> IrValue:
        """Emit LLVM IR that evaluates an integer or pointer expression; return the value, as wide
        as its type. Raises _ImpureError.
        """
        if not isinstance(expr.type, IntType | PointerType):
            raise _ImpureError
        code, bits = self.code, bits_of(expr.type)
        match expr:
            case typed.IntConst():
                return const(expr.value, bits)
            case typed.Builtin():
                return self._builtin(expr)
            case typed.RegisterRead(user=False, index=typed.IntConst(value=index)):
                slot = register_slot(self.machine, index)
                if slot is None:
                    raise _ImpureError
                return code.convert(self.register(slot), bits, signed=False)
            case typed.Unary(op="-"):
                return code.op("sub", const(0, bits), self.value(expr.operand))
            case typed.Unary(op="~"):
                return code.op("xor", self.value(expr.operand), -1)
            case typed.Binary() if expr.op in _PLAIN:
                return code.op(_PLAIN[expr.op], self.value(expr.left), self.value(expr.right))
            case typed.Binary(op="<<" | ">>"):
                return self._shift(expr, bits)
            case typed.Conditional():
                chosen = self.truth(expr.condition)
                return self.select(chosen, self.value(expr.then), self.value(expr.otherwise))
            case typed.Comma():
                self.value(expr.left)
                return self.value(expr.right)
            case typed.Cast():
                operand = self.value(expr.operand)
                return code.convert(operand, bits, typed.is_signed(expr.operand.type))
            case typed.Logical() | typed.Unary(op="!") | typed.Binary() if _decides(expr):
                return code.convert(self.truth(expr), bits, signed=False)
        raise _ImpureError

    def select(self, condition: IrValue, then: IrValue, otherwise: IrValue) -> IrValue:
        """Emit LLVM IR that selects one of two values without a branch; return the selected
        value.
        """
        code = self.code
        if self.isa.snippets.selects:
            return code.select(condition, then, otherwise)
        mask = code.opaque(code.convert(condition, 64, signed=True))
        differ = code.convert(code.op("xor", then, otherwise), 64, signed=False)
        chosen = code.convert(code.op("and", differ, mask), then.bits, signed=False)
        return code.op("xor", chosen, otherwise)

    def _builtin(self, expr: typed.Builtin) -> IrValue:
        code, bits, name = self.code, bits_of(expr.type), expr.name
        if name in OF_THREAD and name in self.machine.builtins:
            access = self.machine.builtins[name]
            value = read_access(code, self.machine, access)
            if isinstance(value, Text):
                raise _ImpureError
            return code.convert(value, bits, access.signed)
        number = int(name[3:]) if name[:3] == "arg" and name[3:].isdigit() else -1
        if not 0 <= number < len(self.arguments):
            raise _ImpureError
        argument = self.arguments[number]
        if argument.kind == ARGUMENT_SLOT:
            return code.convert(self.register(argument.value), bits, signed=False)
        if argument.kind == ARGUMENT_CONSTANT:
            return const(argument.value, bits)
        if argument.kind == ARGUMENT_POINTED:
            base = self.register(argument.value & POINTED_SLOT)
            value = code.load(64, code.add(base, argument.value >> POINTED_SHIFT))
            return code.convert(value, bits, signed=False)
        raise _ImpureError

    def _shift(self, expr: typed.Binary, bits: int) -> IrValue:
        """Emit a shift as DTrace does: on 64 bits, with the count modulo 64; return the result in
        `bits` bits.
        """
        code = self.code
        right = code.convert(self.value(expr.right), 64, signed=False)
        signed = typed.is_signed(expr.left.type)
        opcode = "shl" if expr.op == "<<" else "ashr" if signed else "lshr"
        left = code.convert(self.value(expr.left), 64, signed)
        return code.convert(code.op(opcode, left, code.op("and", right, 63)), bits, signed)

    def truth(self, expr: typed.Expr) -> IrValue:
        """Emit LLVM IR that tests whether the value of an expression is not zero; return an i1.
        Raises _ImpureError.
        """
        match expr:
            case typed.Logical():
                opcode = {"&&": "and", "||": "or", "^^": "xor"}[expr.op]
                return self.code.op(opcode, self.truth(expr.left), self.truth(expr.right))
            case typed.Binary() if expr.op in _COMPARE and not _of_texts(expr):
                predicate = _COMPARE[expr.op]
                if predicate not in ("eq", "ne"):
                    predicate = ("s" if typed.is_signed(expr.left.type) else "u") + predicate
                return self.code.icmp(predicate, self.value(expr.left), self.value(expr.right))
            case typed.Unary(op="!") | typed.Binary(op="==" | "!="):
                word, zero = self.word(expr)
                return self.code.icmp("eq" if zero else "ne", word, 0)
            case typed.Binary() if expr.op in _COMPARE:  # order of two strings
                raise _ImpureError
        return self.code.icmp("ne", self.value(expr), 0)

    def word(self, expr: typed.Expr) -> tuple[IrValue, bool]:
        """Emit LLVM IR for the truth value of an expression; return (word, zero). If `zero` is
        True, the expression is true if the 64-bit word is 0. Otherwise, it is true if the word is
        not 0.

        An equality becomes a difference, which many ISAs compute without changing flags. Raises
        _ImpureError.
        """
        match expr:
            case typed.Binary(op="==" | "!="):
                if _of_texts(expr):
                    return self._text_difference(expr), expr.op == "=="
                difference = self.code.op("sub", self.value(expr.left), self.value(expr.right))
                return self.code.convert(difference, 64, signed=False), expr.op == "=="
            case typed.Unary(op="!"):
                word, zero = self.word(expr.operand)
                return word, not zero
            case typed.Logical(op="&&" | "||"):
                left, right = self.word(expr.left), self.word(expr.right)
                # (a - b) | (c - d) is zero if both pairs are equal.
                if left[1] == right[1] == (expr.op == "&&"):
                    return self.code.op("or", left[0], right[0]), left[1]
            case typed.Cast(operand=operand) if bits_of(expr.type) >= bits_of(operand.type):
                return self.word(operand)
        return self.code.convert(self.truth(expr), 64, signed=False), False

    def _text_difference(self, expr: typed.Binary) -> IrValue:
        """Emit LLVM IR that compares execname with a literal; return a 64-bit word that is 0 if
        they are equal.  Raises _ImpureError for other strings, and if the literal with its NUL is
        longer than execname's memory.
        """
        name, literal = expr.left, expr.right
        if isinstance(name, typed.StrConst):
            name, literal = literal, name
        access = self.machine.builtins.get("execname")
        is_execname = (
            isinstance(name, typed.Builtin) and name.name == "execname" and access is not None
        )
        if not is_execname or access is None or not isinstance(literal, typed.StrConst):
            raise _ImpureError
        bytes_ = literal.value.partition(b"\0")[0] + b"\0"
        text = read_access(self.code, self.machine, access)
        assert isinstance(text, Text)
        if len(bytes_) > text.bound:
            raise _ImpureError
        code, difference, at = self.code, const(0), 0
        while at < len(bytes_):
            size = 1 << min(3, (len(bytes_) - at).bit_length() - 1)
            wanted = int.from_bytes(bytes_[at : at + size], "little")
            there = code.load(8 * size, code.add(text.address, at))
            differs = code.convert(code.op("xor", there, wanted), 64, signed=False)
            difference = code.op("or", difference, differs)
            at += size
        return difference


def _decides(expr: typed.Expr) -> bool:
    """Return whether the value of a logical, unary or binary expression is always 0 or 1. That of
    arithmetic, such as a + b, is not.
    """
    return not isinstance(expr, typed.Binary) or expr.op in _COMPARE


def _of_texts(expr: typed.Binary) -> bool:
    return isinstance(expr.left.type, StringType) or isinstance(expr.right.type, StringType)


@dataclass(frozen=True, slots=True)
class PureCode:
    """A snippet as LLVM IR, before it is compiled.

    Attributes:
        function: its LLVM function.
        zero: for a guard: whether a result of 0 means that its predicate holds. If not, any other
            result means that.
    """

    function: IrFunction
    zero: bool = False


def _finished(writer: _Writer, word: IrValue) -> None:
    """Complete a snippet: emit inline assembly that reads the site's registers at the start, and
    inline assembly that puts the result word in its register at the end.
    """
    names = writer.isa.snippets.names
    slots = sorted(writer.registers)
    outputs = ",".join(f"={{{names[slot]}}}" for slot in slots)
    take: list[str] = []
    if len(slots) == 1:
        take.append(f'  %register.{slots[0]} = call i64 asm sideeffect "", "{outputs}"()')
    elif slots:
        types = "{" + ", ".join("i64" for _ in slots) + "}"
        take.append(f'  %registers = call {types} asm sideeffect "", "{outputs}"()')
        take += [
            f"  %register.{slot} = extractvalue {types} %registers, {n}"
            for n, slot in enumerate(slots)
        ]
    result = f"{{{writer.isa.snippets.result}}}"
    writer.code.lines[:0] = take
    writer.code.lines.append(f'  call void asm sideeffect "", "{result}"({word})')
    writer.code.lines.append("  unreachable")


def guard_code(
    conditions: Sequence[typed.Expr],
    arguments: Sequence[Argument],
    machine: CodeMachine,
    isa: Isa,
    name: str,
) -> PureCode | None:
    """Return a snippet that tests whether at least one of the conditions holds; None if one of them
    is not pure.

    Args:
        conditions: the predicates.
        arguments: where arg0, arg1, ... are at the site.
        machine: the machine that runs the code.
        isa: the kernel's ISA.
        name: name of the LLVM function.
    """
    writer = _Writer(machine, isa, arguments, _naked(name))
    try:
        if len(conditions) == 1:
            word, zero = writer.word(conditions[0])
        else:
            code, any_ = writer.code, const(0, 1)
            for condition in conditions:
                any_ = code.op("or", any_, writer.truth(condition))
            word, zero = code.convert(any_, 64, signed=False), False
    except _ImpureError:
        return None
    _finished(writer, word)
    return PureCode(writer.code, zero)


def index_code(
    key: typed.Expr,
    layout: AggregationLayout,
    counters: int,
    arguments: Sequence[Argument],
    machine: CodeMachine,
    isa: Isa,
    name: str,
) -> PureCode | None:
    """Return a snippet that finds the counter of a key (helpers/key_slots.py); None if the key is
    not pure.  The snippet's result is the counter's displacement from the per-CPU base (its address
    if all CPUs share the counters), or 0 if the key has no counter.

    Args:
        key: expression of the key.
        layout: layout of an aggregation with counter slots.
        counters: displacement of the counter blocks from the per-CPU base, or the address of the
            counters if all CPUs share them.
        arguments: where arg0, arg1, ... are at the site.
        machine: the machine that runs the code.
        isa: the kernel's ISA.
        name: name of the LLVM function.
    """
    writer = _Writer(machine, isa, arguments, _naked(name))
    try:
        value = writer.value(key)
    except _ImpureError:
        return None
    table = machine.address(machine.scratch.globals + layout.slot_table)
    (field,) = layout.keys
    has_counter, place = counter_of(
        writer.code, value, field, layout.slots, table, counters + layout.counters
    )
    _finished(writer, writer.select(has_counter, place, const(0)))
    return PureCode(writer.code)


def _naked(name: str) -> IrFunction:
    return IrFunction(name, (), 0, "ccc", internal=False, naked=True)


def compile_snippets(
    wanted: Sequence[PureCode], machine: CodeMachine, isa: Isa
) -> list[Snippet | None]:
    """Compile snippets to machine code; return one result for each, in order.  A result is None if
    LLVM made code that a trampoline cannot run.
    """
    if not wanted:
        return []
    compiled = compile_functions([one.function for one in wanted], machine, isa.snippets.features)
    return [isa.snippet(compiled[one.function.name], one.zero) for one in wanted]
