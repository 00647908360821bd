"""Where registers and control may be changed: by the machine, by what a function returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kinst.core.bodies import GOTO, RETURN, SKIP
from kinst.core.dtypes import (
    INT,
    INT64,
    UINT64,
    VOID,
    DType,
    FloatType,
    FunctionType,
    IntType,
    PointerType,
    StructType,
)
from kinst.core.errors import KinstError, Span
from kinst.core.probe import Function, Site
from kinst.dlang import typed
from kinst.isa import load
from kinst.session.perturbing import HERE, IN_PROGRAM, refusals_of, target_of

SPAN = Span("test", 1, 1, 1, "")
FUNCTION = Function("vmlinux", "f@2", 0xFFFF_FFFF_8100_0000, 64)
SITE = Site(FUNCTION, 0, b"\x90")
ENABLED = SimpleNamespace(clauses=(0,), probe=SimpleNamespace(site=SITE))
STRUCT = StructType("struct", "pair", 16, "vmlinux 1", cast(Any, None))


class Types:
    def __init__(self, result: DType | None) -> None:
        self.result = result

    def function(self, name: str, module: str = "") -> FunctionType | None:
        assert (name, module) == ("f", "vmlinux")
        if self.result is STRUCT:
            raise KinstError("the debug file is damaged")
        return None if self.result is None else FunctionType(self.result, ())


def refusal(
    action: typed.Action, result: DType | None = INT, rerun_prefix: bytes = b"", **machine: Any
) -> str:
    clause = typed.Clause(0, (), (), None, (action,), SPAN)
    program = typed.TypedProgram((clause,))
    compiled = SimpleNamespace(program=program, types=Types(result))
    isa = load("amd64")
    facts = SimpleNamespace(only_counts=machine.pop("only_counts", False))
    stopped = SimpleNamespace(
        isa=isa, kernel=SimpleNamespace(isa=isa, instructions=lambda _: ()), system=None,
        facts=facts,
        never_stops=machine.pop("never_stops", False),
    )  # fmt: skip
    asked = SimpleNamespace(compiled=compiled, enabled=(ENABLED,))
    rules = refusals_of(cast(Any, asked), cast(Any, stopped))
    assert rules is not None
    return rules(cast(Any, ENABLED), SITE, rerun_prefix)


def returning(value: int) -> typed.Action:
    return typed.ReturnAction(SPAN, typed.IntConst(INT64, SPAN, value))


@pytest.mark.parametrize(
    ("result", "value", "told"),
    [
        (INT, -13, ""), (INT, 0xFFFF_FFFF, ""), (INT, 1 << 32, "cannot be 4294967296"),
        (IntType(1, False, "_Bool"), 1, ""), (IntType(1, False, "bool"), 2, "cannot be 2"),
        (PointerType(VOID), -12, ""), (UINT64, -1, ""),
        (VOID, 0, "returns void"), (FloatType(8, "double"), 0, "returns double"),
        (IntType(16, True, "__int128"), 0, "not in one register"),
        (STRUCT, 0, "the debug file is damaged"), (None, 0, "do not tell what f returns"),
    ],
)  # fmt: skip
def test_what_a_function_may_return(result: DType | None, value: int, told: str) -> None:
    found = refusal(returning(value), result)
    assert told in found and bool(told) == bool(found)


@pytest.mark.parametrize(
    "action",
    [
        returning(0), typed.SkipAction(SPAN), typed.GotoAction(SPAN, 4),
        typed.SetRegisterAction(SPAN, 0, typed.IntConst(UINT64, SPAN, 0)),
        typed.RaiseAction(SPAN, None),
        typed.PanicAction(SPAN, typed.StrConst(INT, SPAN, b"")),
    ],
)  # fmt: skip
def test_some_machines_are_not_perturbed(action: typed.Action) -> None:
    with pytest.raises(KinstError, match=HERE):
        refusal(action, never_stops=True)
    with pytest.raises(KinstError, match=IN_PROGRAM):
        refusal(action, only_counts=True)


@pytest.mark.parametrize(
    "action",
    [
        returning(0), typed.SkipAction(SPAN), typed.GotoAction(SPAN, 4),
        typed.SetRegisterAction(SPAN, 0, typed.IntConst(UINT64, SPAN, 0)),
    ],
)  # fmt: skip
def test_a_load_exclusive_that_runs_again_is_not_perturbed(action: typed.Action) -> None:
    assert "load-exclusive" in refusal(action, rerun_prefix=b"\x20\x7c\x5f\xc8")


def test_the_last_instruction_of_a_function_is_not_skipped() -> None:
    """Nothing of the function is after it, where control could go on."""
    assert "instruction of the same function after it" in refusal(typed.SkipAction(SPAN))


def test_exits_lead_into_the_function_or_back() -> None:
    site = Site(FUNCTION, 8, b"\x48\x89\xc3")
    assert target_of(RETURN, site) == 0
    assert target_of(SKIP, site) == FUNCTION.address + 11
    assert target_of(GOTO + 40, site) == FUNCTION.address + 40
