"""Random expressions of all types and operators, against an evaluator in Python."""

from __future__ import annotations

import struct

from codegen_rig import RIGS, SPAN, integer, program, reg, trace
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kinst.core import layout as lay
from kinst.core.dtypes import (
    CHAR,
    INT,
    INT64,
    LONG,
    SHORT,
    UINT,
    UINT8,
    UINT64,
    ULONG,
    USHORT,
    VOID,
    DType,
    IntType,
    PointerType,
)
from kinst.dlang import typed as t

INTS = (CHAR, UINT8, SHORT, USHORT, INT, UINT, LONG, ULONG, INT64, UINT64)
POINTER = PointerType(VOID)
VARIABLES = tuple(t.Variable(f"v{i}", ty, i) for i, ty in enumerate((INT, UINT64, CHAR, POINTER)))


class FaultError(Exception):
    """kind, value"""


def fit(value: int, type_: DType) -> int:
    """The value modulo the type's width, in its signedness."""
    assert isinstance(type_, (IntType, PointerType))
    bits = 8 * type_.size
    value %= 1 << bits
    return value - (1 << bits) if t.is_signed(type_) and value >= 1 << (bits - 1) else value


def divide(left: int, right: int) -> tuple[int, int]:
    """C's quotient and remainder: towards zero."""
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return quotient, left - quotient * right


class Evaluator:
    def __init__(self, registers: dict[int, int], variables: list[int]) -> None:
        self.registers = registers
        self.variables = variables

    def value(self, expr: t.Expr) -> int:
        return fit(self.raw(expr), expr.type)

    def raw(self, expr: t.Expr) -> int:
        match expr:
            case t.IntConst():
                return expr.value
            case t.RegisterRead():
                index = self.value(expr.index)
                if index not in range(16):
                    raise FaultError(lay.FAULT_ILLOP, index % (1 << 64))
                return self.registers.get(index, 0)
            case t.GlobalRead():
                return self.variables[expr.variable.index]
            case t.Assign():
                self.variables[expr.variable.index] = result = self.value(expr.value)
                return result
            case t.Step():
                old = self.variables[expr.variable.index]
                new = fit(old + expr.by, expr.variable.type)
                self.variables[expr.variable.index] = new
                return old if expr.post else new
            case t.Unary():
                operand = self.value(expr.operand)
                return {"-": -operand, "~": ~operand, "!": int(not operand)}[expr.op]
            case t.Logical():
                left = bool(self.value(expr.left))
                if expr.op == "&&":
                    return int(left and bool(self.value(expr.right)))
                if expr.op == "||":
                    return int(left or bool(self.value(expr.right)))
                return int(left != bool(self.value(expr.right)))
            case t.Conditional():
                return self.value(expr.then if self.value(expr.condition) else expr.otherwise)
            case t.Comma():
                self.value(expr.left)
                return self.value(expr.right)
            case t.Cast():
                return self.value(expr.operand)
            case t.Binary():
                return self.binary(expr.op, self.value(expr.left), self.value(expr.right))
        raise AssertionError(expr)

    def binary(self, op: str, left: int, right: int) -> int:
        if op in "/%":
            if right == 0:
                raise FaultError(lay.FAULT_DIVZERO, 0)
            return divide(left, right)[op == "%"]
        table = {
            "+": left + right, "-": left - right, "*": left * right, "&": left & right,
            "|": left | right, "^": left ^ right, "<<": left << right % 64,
            ">>": left >> right % 64, "==": left == right, "!=": left != right,
            "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,
        }  # fmt: skip
        return int(table[op])


EDGES = [0, 1, 2, -1, -2, 31, 32, 33, 63, 64, 65, 127, 128, -128, 255, 256, 32767, -32768, 65535]
EDGES += [(1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
numbers = st.one_of(st.sampled_from(EDGES), st.integers(-(1 << 63), (1 << 64) - 1))
types = st.sampled_from(INTS)


@st.composite
def constants(draw: st.DrawFn, type_: DType) -> t.Expr:
    return t.IntConst(type_, SPAN, fit(draw(numbers), type_))


@st.composite
def exprs(draw: st.DrawFn, type_: DType, depth: int) -> t.Expr:
    """Any expression of this scalar type."""
    if depth == 0:
        leaves = ["constant", "register", "global"]
        leaf = draw(st.sampled_from(leaves))
        if leaf == "constant":
            return draw(constants(type_))
        if leaf == "register":
            return t.Cast(type_, SPAN, reg(draw(st.integers(0, 5))))
        variable = draw(st.sampled_from(VARIABLES))
        return t.Cast(type_, SPAN, t.GlobalRead(variable.type, SPAN, variable))
    sub = depth - 1
    kind = draw(st.sampled_from(["binary", "binary", "shift", "unary", "cast", "if", "comma",
                                 "assign", "step", "test", "dynamic"]))  # fmt: skip
    if kind == "binary":
        op = draw(st.sampled_from(["+", "-", "*", "/", "%", "&", "|", "^"]))
        return t.Binary(type_, SPAN, op, draw(exprs(type_, sub)), draw(exprs(type_, sub)))
    if kind == "shift":
        op = draw(st.sampled_from(["<<", ">>"]))
        return t.Binary(type_, SPAN, op, draw(exprs(type_, sub)), draw(exprs(draw(types), sub)))
    if kind == "unary":
        return t.Unary(type_, SPAN, draw(st.sampled_from("-~")), draw(exprs(type_, sub)))
    if kind == "cast":
        inner = draw(st.one_of(types, st.just(POINTER)))
        return t.Cast(type_, SPAN, draw(exprs(inner, sub)))
    if kind == "if":
        condition = draw(exprs(draw(types), sub))
        return t.Conditional(
            type_, SPAN, condition, draw(exprs(type_, sub)), draw(exprs(type_, sub))
        )
    if kind == "comma":
        return t.Comma(type_, SPAN, draw(exprs(draw(types), sub)), draw(exprs(type_, sub)))
    if kind == "assign":
        variable = draw(st.sampled_from(VARIABLES))
        value = draw(exprs(variable.type, sub))
        return t.Cast(type_, SPAN, t.Assign(variable.type, SPAN, variable, value))
    if kind == "step":
        variable = draw(st.sampled_from(VARIABLES))
        step = t.Step(variable.type, SPAN, variable, draw(st.sampled_from((1, -1, 8))),
                      draw(st.booleans()))  # fmt: skip
        return t.Cast(type_, SPAN, step)
    if kind == "dynamic":
        index = t.Binary(INT, SPAN, "&", draw(exprs(INT, sub)), integer(31))
        return t.Cast(type_, SPAN, t.RegisterRead(UINT64, SPAN, index))
    return t.Cast(type_, SPAN, draw(truths(sub)))


@st.composite
def truths(draw: st.DrawFn, depth: int) -> t.Expr:
    """Comparisons, logic and "!": of type int."""
    over = draw(st.one_of(types, st.just(POINTER)))
    kind = draw(st.sampled_from(["compare", "compare", "logic", "not"]))
    left = draw(exprs(over, depth))
    if kind == "not":
        return t.Unary(INT, SPAN, "!", left)
    if kind == "logic":
        op = draw(st.sampled_from(["&&", "||", "^^"]))
        return t.Logical(INT, SPAN, op, left, draw(exprs(draw(types), depth)))
    op = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
    return t.Binary(INT, SPAN, op, left, draw(exprs(over, depth)))


@st.composite
def many(draw: st.DrawFn) -> list[t.Expr]:
    return [draw(exprs(draw(types), draw(st.integers(1, 4)))) for _ in range(12)]


@settings(
    max_examples=40,
    deadline=None,
    # Every step of shrinking compiles a dozen clauses twice: minutes, for what the seed tells.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large,
                           HealthCheck.large_base_example],
)  # fmt: skip
@given(many(), st.lists(numbers, min_size=6, max_size=6))
def test_random_expressions(found: list[t.Expr], values: list[int]) -> None:
    registers = {i: v % (1 << 64) for i, v in enumerate(values)}
    evaluator = Evaluator(registers, [0] * len(VARIABLES))
    expected: list[tuple[int, bytes]] = []
    last: tuple[int, int, int] | None = None
    faults = 0
    for clause, expr in enumerate(found):
        try:
            value = evaluator.value(expr)
        except FaultError as fault:
            faults += 1
            last = (clause, *fault.args)
        else:
            size = expr.type.size  # type: ignore[attr-defined]
            expected.append((clause, (value % (1 << 8 * size)).to_bytes(size, "little")))
    clauses = tuple(range(len(found)))
    for rig in RIGS:
        run = rig(program(*([trace(e)] for e in found), variables=VARIABLES), {1: clauses})
        run.fire(1, registers)
        got = [(r.clause, run.fields(r)[0]) for r in run.records(run.slot)]
        assert got == expected, rig
        assert run.state(lay.STATE_ERRORS, run.slot) == faults
        if last is not None:
            noted = [run.state(lay.STATE_FAULT + 8 * i, run.slot) for i in range(4)]
            assert noted == [run.epid(1, last[0]), 1, last[1], last[2]]
        stored = [
            struct.unpack_from(f, run.read(run.scratch.globals + at, 8))[0]
            for f, at in zip(("<i", "<Q", "<b", "<Q"), run.layout.variables, strict=True)
        ]
        assert stored == evaluator.variables


def test_least_number_by_minus_one_wraps() -> None:
    pairs = [(INT, -(1 << 31)), (INT64, -(1 << 63)), (CHAR, -128)]
    found: list[t.Expr] = []
    for type_, least in pairs:
        for op in "/%":
            left = t.Cast(type_, SPAN, reg(1 if type_ is INT64 else 2))
            found.append(t.Binary(type_, SPAN, op, left, integer(-1, type_)))
            right = t.Cast(type_, SPAN, reg(3))
            found.append(t.Binary(type_, SPAN, op, integer(least, type_), right))
    for rig in RIGS:
        run = rig(program([trace(e) for e in found]), {1: (0,)})
        run.fire(1, {1: 1 << 63, 2: 0x80000080, 3: (1 << 64) - 1})
        (record,) = run.records(run.slot)
        got = [
            int.from_bytes(run.fields(record, i)[0], "little", signed=True)
            for i in range(len(found))
        ]
        low2 = fit(0x80000080, INT)
        assert got == [-low2, -(1 << 31), 0, 0, -(1 << 63), -(1 << 63), 0, 0, -128, -128, 0, 0]
