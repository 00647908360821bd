"""Generator of LLVM IR for expressions.

D computes as C does, at each type's width, and defines what C leaves undefined: all arithmetic
wraps around, and shifts are DTrace's, of 64 bits with the count modulo 64.
"""

from __future__ import annotations

from kinst.codegen.analysis import register_slot
from kinst.codegen.firing import Firing, Lowered, Text
from kinst.codegen.helpers.memory_access import load_word, target_address
from kinst.codegen.helpers.speculation_slots import new_speculation
from kinst.codegen.helpers.strings_in_memory import (
    compare_texts,
    copy_text,
    load_string,
    load_string_or_null,
)
from kinst.codegen.layout.variable_places import bits_of, by_address, size_of
from kinst.codegen.ssa import IrValue, const
from kinst.codegen.subroutines import load_all
from kinst.codegen.subroutines.arguments import Args
from kinst.codegen.values.builtin_values import builtin
from kinst.codegen.values.memory_stores import snapshot, store
from kinst.codegen.values.stack_values import stack_depth, user_caller, user_depth, user_register
from kinst.codegen.values.variable_code import VARIABLE_NODES, lower_variable
from kinst.core.dtypes import StringType, VoidType
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR, FAULT_DIVZERO, FAULT_ILLOP
from kinst.dlang import typed
from kinst.dlang.typed import BaseAddress, Before, Shared, Store, TranslatedStruct
from kinst.dlang.vocabulary import builtins

_PLAIN = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}

_DIVIDE = {"/": "div", "%": "rem"}

_COMPARE = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def scalar(firing: Firing, expr: typed.Expr) -> IrValue:
    """Emit LLVM IR that evaluates an integer, pointer or string expression; return its value, or
    for a string its address.
    """
    value = nullable(firing, expr)
    return value.address if isinstance(value, Text) else value


def nullable(firing: Firing, expr: typed.Expr) -> Lowered:
    """Emit LLVM IR that evaluates an expression; return the value, which may be a NULL string.
    This is for values that D compares, assigns or passes on, since NULL is allowed there.
    """
    match expr:
        case typed.Subroutine():
            parameters = expr.prototype.parameters
            args = [
                (nullable if parameter.nullable else lower)(firing, arg)
                for parameter, arg in zip(parameters, expr.args, strict=False)
            ]
            return subroutine(firing, expr, args)
        case typed.Conditional():
            return _conditional(firing, expr)
        case typed.Comma():
            nullable(firing, expr.left)
            return nullable(firing, expr.right)
        case typed.Load(type=StringType(), most=0):
            if isinstance(expr.address, typed.IntConst) and not expr.address.value:
                return Text(const(0), 1, nullable=True)
            address = firing.code.convert(scalar(firing, expr.address), 64, signed=False)
            size = size_of(expr.type, firing.unit.layout.strsize)
            return load_string_or_null(firing, address, size)
        case _ if isinstance(expr, VARIABLE_NODES):
            return lower_variable(firing, expr, lower, nullable)
    return lower(firing, expr)


def truth(firing: Firing, expr: typed.Expr) -> IrValue:
    """Emit LLVM IR that tests whether the value of an expression is not zero; return an i1."""
    return firing.code.icmp("ne", scalar(firing, expr), 0)


def lower(firing: Firing, expr: typed.Expr) -> Lowered:
    """Emit LLVM IR that evaluates any expression, with its effects in D's order, from left to
    right; return the value.  A NULL string faults.
    """
    if isinstance(expr, VARIABLE_NODES):
        return present(firing, nullable(firing, expr))
    match expr:
        case typed.IntConst():
            return const(expr.value, bits_of(expr.type))
        case typed.StrConst():
            machine = firing.unit.machine
            offset = machine.scratch.strings + firing.unit.strings[expr.value]
            return Text(const(machine.address(offset)), len(expr.value) + 1)
        case typed.Builtin(name=builtins.SPECULATION):
            return firing.code.convert(new_speculation(firing), bits_of(expr.type), signed=False)
        case typed.Builtin(name="stackdepth"):
            return firing.code.convert(stack_depth(firing), bits_of(expr.type), signed=False)
        case typed.Builtin(name="ustackdepth"):
            return firing.code.convert(user_depth(firing), bits_of(expr.type), signed=False)
        case typed.Builtin(name="ucaller"):
            return user_caller(firing)
        case typed.Builtin():
            return builtin(firing, expr.name, expr.type)
        case typed.RegisterRead(user=True, index=typed.IntConst(value=number)):
            return user_register(firing, number)
        case typed.RegisterRead():
            return _register(firing, expr)
        case typed.Unary():
            return _unary(firing, expr)
        case typed.NonZero():
            value = scalar(firing, expr.operand)
            zero = firing.code.icmp("eq", value, 0)
            firing.faults.add(firing.code, zero, FAULT_DIVZERO, const(0))
            return value
        case typed.Binary():
            return _binary(firing, expr)
        case typed.Logical():
            return _logical(firing, expr)
        case typed.Conditional() | typed.Comma() | typed.Subroutine():
            return present(firing, nullable(firing, expr))
        case typed.Cast():
            return _cast(firing, expr)
        case typed.BitField():
            address = firing.code.convert(scalar(firing, expr.address), 64, signed=False)
            return bit_field(firing, expr, address)
        case typed.SymbolAddress():
            return symbol(firing, expr)
        case Store():
            return store(firing, expr, lower)
        case Before() | BaseAddress():
            return firing.old[-1]
        case TranslatedStruct():
            return snapshot(firing, expr, lower)
        case Shared():
            return target_address(firing, scalar(firing, expr.operand))
        case typed.Load():
            address = firing.code.convert(scalar(firing, expr.address), 64, signed=False)
            if isinstance(expr.type, StringType):
                size = size_of(expr.type, firing.unit.layout.strsize)
                return load_string(firing, address, size, expr.most)
            if by_address(expr.type):
                return address
            return load_word(firing, address, bits_of(expr.type))
    raise KinstError(f"{expr.span}: kinst cannot compile {type(expr).__name__} yet")


def _register(firing: Firing, expr: typed.RegisterRead) -> IrValue:
    code = firing.code
    machine = firing.unit.machine
    if isinstance(expr.index, typed.IntConst):
        slot = register_slot(machine, expr.index.value)
        if slot is None:
            raise KinstError(f"{expr.span}: there is no regs[{expr.index.value}]")
        address = code.add(firing.frame, 8 * slot)
    else:
        number = scalar(firing, expr.index)
        wide = code.convert(number, 64, typed.is_signed(expr.index.type))
        offset = const(-1)
        for register in machine.registers:
            here = code.icmp("eq", wide, register.index)
            offset = code.select(here, const(8 * register.slot), offset)
        bad = code.icmp("eq", offset, -1)
        firing.faults.add(code, bad, FAULT_ILLOP, wide)
        address = code.op("add", firing.frame, offset)
    return code.convert(code.load(64, address), bits_of(expr.type), signed=False)


def _unary(firing: Firing, expr: typed.Unary) -> IrValue:
    code = firing.code
    value = scalar(firing, expr.operand)
    if expr.op == "-":
        return code.op("sub", const(0, value.bits), value)
    if expr.op == "~":
        return code.op("xor", value, -1)
    zero = code.icmp("eq", value, 0)
    return code.convert(zero, bits_of(expr.type), signed=False)


def _compare(
    firing: Firing, expr: typed.Binary, left: IrValue, right: IrValue, sign: bool
) -> IrValue:
    predicate = _COMPARE[expr.op]
    if predicate not in ("eq", "ne"):
        predicate = ("s" if sign else "u") + predicate
    result = firing.code.icmp(predicate, left, right)
    return firing.code.convert(result, bits_of(expr.type), signed=False)


def _binary(firing: Firing, expr: typed.Binary) -> IrValue:
    code = firing.code
    if isinstance(expr.left.type, StringType) and isinstance(expr.right.type, StringType):
        left_text, right_text = nullable(firing, expr.left), nullable(firing, expr.right)
        assert isinstance(left_text, Text) and isinstance(right_text, Text)
        order = compare_texts(firing, left_text, right_text)
        return _compare(firing, expr, order, const(0), True)
    left = scalar(firing, expr.left)
    right = scalar(firing, expr.right)
    signed = typed.is_signed(expr.left.type)
    if expr.op in _PLAIN:
        return code.op(_PLAIN[expr.op], left, right)
    if expr.op in _COMPARE:
        return _compare(firing, expr, left, right, signed)
    if expr.op in _DIVIDE:
        return _divide(firing, _DIVIDE[expr.op], left, right, signed)
    return _shift(firing, expr, left, right, signed)


def _divide(firing: Firing, opcode: str, left: IrValue, right: IrValue, signed: bool) -> IrValue:
    """Emit a division or remainder; return the result.  A zero divisor faults.  The least number
    divided by -1 wraps around instead of trapping.

    Args:
        opcode: "div" or "rem".
    """
    code = firing.code
    firing.faults.add(code, code.icmp("eq", right, 0), FAULT_DIVZERO, const(0))
    if not signed:
        return code.op("u" + opcode, left, right)
    minus = code.icmp("eq", right, -1)
    result = code.op("s" + opcode, left, code.select(minus, const(1, left.bits), right))
    wrapped = const(0, left.bits)
    if opcode == "div":
        wrapped = code.op("sub", wrapped, left)
    return code.select(minus, wrapped, result)


def _shift(
    firing: Firing, expr: typed.Binary, left: IrValue, right: IrValue, signed: bool
) -> IrValue:
    code = firing.code
    count = code.op("and", code.convert(right, 64, signed=False), 63)
    opcode = "shl" if expr.op == "<<" else "ashr" if signed else "lshr"
    wide = code.op(opcode, code.convert(left, 64, signed), count)
    return code.convert(wide, left.bits, signed)


def _logical(firing: Firing, expr: typed.Logical) -> IrValue:
    code = firing.code
    left = truth(firing, expr.left)
    if expr.op == "^^":
        result = code.op("xor", left, truth(firing, expr.right))
        return code.convert(result, bits_of(expr.type), signed=False)
    before = code.at
    other, end = code.fresh("right"), code.fresh("both")
    if expr.op == "&&":
        code.branch(left, other, end)
    else:
        code.branch(left, end, other)
    code.block(other)
    right = truth(firing, expr.right)
    after = code.at
    code.jump(end)
    code.block(end)
    decided = const(0 if expr.op == "&&" else 1, 1)
    result = code.phi(1, [(decided, before), (right, after)])
    return code.convert(result, bits_of(expr.type), signed=False)


def _conditional(firing: Firing, expr: typed.Conditional) -> Lowered:
    code = firing.code
    then, otherwise, end = (code.fresh(n) for n in ("then", "else", "end"))
    code.branch(truth(firing, expr.condition), then, otherwise)
    results: list[tuple[Lowered, str]] = []
    for label, side in ((then, expr.then), (otherwise, expr.otherwise)):
        code.block(label)
        results.append((nullable(firing, side), code.at))
        code.jump(end)
    code.block(end)
    words = [(v.address if isinstance(v, Text) else v, at) for v, at in results]
    bounds = [v.bound for v, _ in results if isinstance(v, Text)]
    result = code.phi(words[0][0].bits, words)
    null = any(isinstance(v, Text) and v.nullable for v, _ in results)
    return Text(result, max(bounds), null) if bounds else result


def _cast(firing: Firing, expr: typed.Cast) -> Lowered:
    value = nullable(firing, expr.operand)
    if isinstance(value, Text):
        if isinstance(expr.type, StringType):
            return present(firing, value)
        if isinstance(expr.operand, typed.Builtin):
            # On the host, other code cannot read a built-in's string in the context, so copy it.
            size = value.bound + 1
            room = firing.text_room(size)
            copy_text(firing, value, room, size)
            return room
        return value.address
    return firing.code.convert(value, bits_of(expr.type), typed.is_signed(expr.operand.type))


def present(firing: Firing, value: Lowered) -> Lowered:
    """Emit LLVM IR that faults if a value is a NULL string; return the value."""
    if isinstance(value, Text) and value.nullable:
        null = firing.code.icmp("eq", value.address, 0)
        firing.faults.add(firing.code, null, FAULT_BADADDR, const(0))
        return Text(value.address, value.bound)
    return value


def subroutine(firing: Firing, expr: typed.Subroutine, args: Args) -> Lowered:
    """Emit LLVM IR of a call of a subroutine; return its result, which may be a NULL string.

    Args:
        args: the arguments' values.
    """
    value = load_all()[expr.name].emit(firing, args)
    if isinstance(value, Text):
        return value
    if isinstance(expr.type, VoidType):
        return const(0)
    return firing.code.convert(value, bits_of(expr.type), typed.is_signed(expr.type))


def bit_field(firing: Firing, expr: typed.BitField, address: IrValue) -> IrValue:
    """Emit LLVM IR that loads a bit-field, reading only the bytes that hold it; return its value.

    Args:
        address: address of the first of these bytes.
    """
    code = firing.code
    size = (expr.bit + expr.bits + 7) // 8
    word = code.convert(load_word(firing, address, 8 * size), 64, signed=False)
    top = code.op("shl", word, 64 - expr.bit - expr.bits)
    shift = "ashr" if typed.is_signed(expr.type) else "lshr"
    value = code.op(shift, top, 64 - expr.bits)
    return code.convert(value, bits_of(expr.type), signed=False)


def symbol(firing: Firing, expr: typed.SymbolAddress) -> IrValue:
    """Return the address of a symbol of the running kernel.  Raises KinstError if the target has no
    such symbol.
    """
    address = firing.unit.machine.symbols.get((expr.module, expr.name))
    if address is None:
        raise KinstError(
            f"{expr.span}: the address of {expr.module}`{expr.name} is not known",
            "its kernel or module is not running",
        )
    return const(address)
