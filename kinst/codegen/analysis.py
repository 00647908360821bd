"""Facts about a typed program that code generation needs: its string literals, whether it makes
pointers into scratch, which slots of the register frame it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.codegen.code_machine import CodeMachine
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import ArrayType, PointerType, StackType, StringType, StructType, SymbolType
from kinst.dlang import typed
from kinst.dlang.typed import Shared, TranslatedStruct
from kinst.dlang.walk import expressions, find


def string_table(program: typed.TypedProgram) -> tuple[dict[bytes, int], bytes]:
    """Return the bytes of a program's strings area, and the offset of each string literal in that
    area, as (offsets, bytes).
    """
    offsets: dict[bytes, int] = {}
    text = bytearray()
    for literal in find(program, typed.StrConst):
        if literal.value not in offsets:
            offsets[literal.value] = len(text)
            text += literal.value + b"\0"
    return offsets, bytes(text)


def _points_into_string(expr: typed.Expr) -> bool:
    """Return whether the expression is the address of a character of a string (s[i] compiles to
    such an address).
    """
    return (
        isinstance(expr, typed.Cast)
        and isinstance(expr.type, PointerType)
        and isinstance(expr.operand.type, StringType)
    )


def makes_pointers(program: typed.TypedProgram) -> bool:
    """Return whether an expression of the program can have an address in scratch as its value."""
    if any(isinstance(variable.type, StructType) for variable in program.variables):
        return True
    return any(
        isinstance(expr, TranslatedStruct | Shared)
        or (isinstance(expr, typed.GlobalRead) and isinstance(expr.type, ArrayType))
        or (isinstance(expr, typed.Subroutine) and expr.prototype.has_pointers)
        or _points_into_string(expr)
        for expr in expressions(program)
    )


def shares_variables(program: typed.TypedProgram) -> bool:
    """Return whether an expression of the program can have the address of a D variable as its
    value.
    """
    return any(find(program, Shared))


def register_slot(machine: CodeMachine, index: int) -> int | None:
    """Return the slot of regs[index] in the frame of saved registers; None if the frame does not
    have this register.
    """
    return next((r.slot for r in machine.registers if r.index == index), None)


def unwinding_slots(machine: CodeMachine) -> frozenset[int]:
    """Return the frame slots of the registers from which a walk of the kernel's stack starts, such
    as the stack pointer and the frame pointer. Empty if kinst knows no unwinder of this kernel.
    """
    if machine.unwinder is None:
        return frozenset()
    names = {name for _, name in machine.unwinder.registers}
    return frozenset(r.slot for r in machine.registers if r.d_name in names)


def reads_stack(program: typed.TypedProgram, clauses: Sequence[int]) -> bool:
    """Return whether one of these clauses uses stack() or stackdepth."""
    return any(
        (isinstance(e, typed.RecordedStack) and isinstance(e.type, StackType) and not e.type.user)
        or (isinstance(e, typed.Builtin) and e.name == "stackdepth")
        for c in clauses
        for e in expressions(program.clauses[c])
    )


def asks_caller(program: typed.TypedProgram) -> bool:
    """Return whether any clause reads `caller`."""
    return any(expr.name == "caller" for expr in find(program, typed.Builtin))


def looks_at_user(expr: typed.Expr) -> bool:
    """Return whether the value of the expression depends on the user program that the current
    process runs: on its registers (uregs[]), its stack (ustack() and the like) or the names of its
    addresses (usym() and the like).
    """
    if isinstance(expr, typed.Builtin):
        return expr.name in ("ucaller", "ustackdepth")
    if isinstance(expr, typed.RegisterRead):
        return expr.user
    return isinstance(expr.type, StackType | SymbolType) and expr.type.user


def most_frames(program: typed.TypedProgram) -> int:
    """Return the largest number of frames that a kernel stack() of the program records; 0 if it has
    no such stack().
    """
    stacks = (stack.type for stack in find(program, typed.RecordedStack))
    return max((t.frames for t in stacks if isinstance(t, StackType) and not t.user), default=0)


_PURE_NODES = (
    typed.IntConst, typed.Unary, typed.Binary, typed.Conditional, typed.Comma, typed.Cast,
    typed.Logical, typed.RegisterRead,
)  # fmt: skip
OF_THREAD = frozenset(("pid", "tid", "uid", "gid", "cpu", "curthread"))


def may_be_pure(expr: typed.Expr) -> bool:
    """Return False if the expression is certainly not pure (snippets.py): it reads something else
    than registers, arguments, constants and the current thread. True does not mean that it is pure.
    """
    return all(
        isinstance(part, _PURE_NODES)
        or (isinstance(part, typed.Builtin) and (part.name in OF_THREAD or part.name[:3] == "arg"))
        for part in expressions(expr)
    )


@dataclass(frozen=True, slots=True)
class Reads:
    """Parts of the register frame that a clause reads.

    Attributes:
        slots: numbers of frame slots.
        caller: whether the clause reads `caller`. If so, it also reads the frame slot of the
            register from which the return address is found. The slot's number depends on the site
            and is in the site's descriptor (SITE_CFA_SLOT).
        arguments: numbers of the probe's arguments that the clause reads; the site's descriptor
            says where they are (SITE_ARGUMENTS).
    """

    slots: frozenset[int]
    caller: bool
    arguments: frozenset[int]


def slots_read(clause: typed.Clause, machine: CodeMachine) -> Reads:
    """Return the parts of the register frame that a clause reads if it runs on this machine."""
    slots: set[int] = set()
    caller = False
    arguments: set[int] = set()
    for expr in expressions(clause):
        if isinstance(expr, typed.RegisterRead):
            if expr.user:
                continue
            if isinstance(expr.index, typed.IntConst):
                slot = register_slot(machine, expr.index.value)
                slots |= set() if slot is None else {slot}
            else:
                slots |= {r.slot for r in machine.registers}
        elif isinstance(expr, typed.RecordedStack):
            if isinstance(expr.type, StackType) and not expr.type.user:
                slots |= unwinding_slots(machine)
        elif isinstance(expr, typed.Builtin):
            if expr.name == "stackdepth":
                slots |= unwinding_slots(machine)
            if expr.name == "caller":
                caller = True
                slots.add(machine.sp_slot)
            elif expr.name[:3] == "arg" and expr.name[3:].isdigit():
                arguments.add(int(expr.name[3:]))
    return Reads(frozenset(slots), caller, frozenset(arguments))
