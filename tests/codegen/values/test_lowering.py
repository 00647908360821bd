"""Random expressions of all types and operators, against an evaluator in Python."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
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
from tests.codegen.codegen_rig import RIGS, SPAN, integer, program, reg, trace
from tests.tiers import draws

INTS = (CHAR, UINT8, SHORT, USHORT, INT, UINT, LONG, ULONG, INT64, UINT64)
POINTER = PointerType(VOID)
VARIABLES = tuple(t.Variable(f"v{i}", ty, i) for i, ty in enumerate((INT, UINT64, CHAR, POINTER)))


class FaultError(Exception):
    """A fault, with kind and value."""


def fit(value: int, type_: DType) -> int:
    """Return the value modulo the type's width, in its signedness."""
    assert isinstance(type_, (IntType, PointerType))
    bits = 8 * type_.size
    value %= 1 << bits
    return value - (1 << bits) if t.is_signed(type_) and value >= 1 << (bits - 1) else value


def divide(left: int, right: int) -> tuple[int, int]:
    """Compute C's quotient and remainder: towards zero."""
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


class Maker:
    """Makes random typed expressions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def number(self) -> int:
        if self.random.random() < 0.6:
            return int(self.pick(EDGES))
        return self.random.getrandbits(self.random.randrange(1, 65))

    def type(self) -> DType:
        return self.pick((*INTS, POINTER))  # type: ignore[no-any-return]

    def variable(self) -> t.Variable:
        return self.pick(VARIABLES)  # type: ignore[no-any-return]

    def any(self, type_: DType, depth: int) -> t.Expr:
        """Make an expression of this scalar type."""
        makers = [self.leaf] if depth == 0 else [
            self.binary, self.binary, self.shift, self.unary, self.cast, self.cast, self.choice,
            self.comma, self.assign, self.step, self.dynamic, self.truth, self.leaf,
        ]  # fmt: skip
        made: t.Expr = self.pick(makers)(type_, depth - 1)
        return made

    def leaf(self, type_: DType, _: int) -> t.Expr:
        kind = self.random.randrange(3)
        if kind == 0:
            return t.IntConst(type_, SPAN, fit(self.number(), type_))
        if kind == 1:
            return t.Cast(type_, SPAN, reg(self.random.randrange(6)))
        variable = self.variable()
        return t.Cast(type_, SPAN, t.GlobalRead(variable.type, SPAN, variable))

    def binary(self, type_: DType, depth: int) -> t.Expr:
        op = self.pick("+-*/%&|^")
        return t.Binary(type_, SPAN, op, self.any(type_, depth), self.any(type_, depth))

    def shift(self, type_: DType, depth: int) -> t.Expr:
        count = self.any(self.type(), depth)
        return t.Binary(type_, SPAN, self.pick(("<<", ">>")), self.any(type_, depth), count)

    def unary(self, type_: DType, depth: int) -> t.Expr:
        return t.Unary(type_, SPAN, self.pick("-~"), self.any(type_, depth))

    def cast(self, type_: DType, depth: int) -> t.Expr:
        return t.Cast(type_, SPAN, self.any(self.type(), depth))

    def choice(self, type_: DType, depth: int) -> t.Expr:
        sides = (self.any(type_, depth), self.any(type_, depth))
        return t.Conditional(type_, SPAN, self.any(self.type(), depth), *sides)

    def comma(self, type_: DType, depth: int) -> t.Expr:
        return t.Comma(type_, SPAN, self.any(self.type(), depth), self.any(type_, depth))

    def assign(self, type_: DType, depth: int) -> t.Expr:
        variable = self.variable()
        value = self.any(variable.type, depth)
        return t.Cast(type_, SPAN, t.Assign(variable.type, SPAN, variable, value))

    def step(self, type_: DType, _: int) -> t.Expr:
        variable = self.variable()
        step = t.Step(
            variable.type, SPAN, variable, self.pick((1, -1, 8)), self.pick((True, False))
        )
        return t.Cast(type_, SPAN, step)

    def dynamic(self, type_: DType, depth: int) -> t.Expr:
        index = t.Binary(INT, SPAN, "&", self.any(INT, depth), integer(self.pick((7, 15, 31))))
        return t.Cast(type_, SPAN, t.RegisterRead(UINT64, SPAN, index))

    def truth(self, type_: DType, depth: int) -> t.Expr:
        """Make a comparison, logic or "!", of type int."""
        over = self.type()
        left = self.any(over, depth)
        kind = self.random.randrange(4)
        if kind == 0:
            found: t.Expr = t.Unary(INT, SPAN, "!", left)
        elif kind == 1:
            right = self.any(self.type(), depth)
            found = t.Logical(INT, SPAN, self.pick(("&&", "||", "^^")), left, right)
        else:
            op = self.pick(("==", "!=", "<", "<=", ">", ">="))
            found = t.Binary(INT, SPAN, op, left, self.any(over, depth))
        return t.Cast(type_, SPAN, found)


@pytest.mark.parametrize("part", range(draws(3, 8)))
@settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.integers(0, 1 << 64))
def test_random_expressions(part: int, seed: int) -> None:
    maker = Maker(8 * seed + part)
    found = [maker.any(maker.type(), 1 + i % 4) for i in range(12)]
    registers = {i: maker.number() % (1 << 64) for i in range(6)}
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
