"""Runs subroutines on texts and numbers, on all machines."""

from __future__ import annotations

import functools
import re

from hypothesis import settings
from hypothesis import strategies as st

from kinst.codegen.subroutines import prototypes
from kinst.core import layout as lay
from kinst.core.dtypes import StringType
from kinst.dlang import typed as t
from kinst.dlang.api import Environment, compile_text
from kinst.systems import of_host
from tests.codegen.codegen_rig import REGISTERS, RIGS, Rig
from tests.tiers import draws

REGS = {r.d_name: r.index for r in REGISTERS}
STRSIZE = 64
A, B = 0x10000, 0x20000  # addresses of the arguments S and T


Value = int | bytes


ERRORS = "dtrace:::ERROR { trace(arg4); trace(arg5); }"


def compiled(text: str) -> t.TypedProgram:
    return compile_text(
        text,
        "test",
        environment=Environment(REGS, STRSIZE, dialect=of_host().dialect, subroutines=prototypes()),
    )[1]


def expression(text: str) -> str:
    """Return an expression in which S and T are the strings, and I, J and K the numbers."""
    names = {
        "S": "stringof((char *)regs[R_0])", "T": "stringof((char *)regs[R_1])",
        "P": "(char *)regs[R_0]", "I": "(int)regs[R_2]", "J": "(int)regs[R_3]",
        "K": "(int64_t)regs[R_4]",
    }  # fmt: skip
    return re.sub(r"\b[STPIJK]\b", lambda m: names[m[0]], text)


@functools.cache
def rigs(body: str) -> tuple[Rig, ...]:
    program = compiled(f"kinst::f:0 {{ {expression(body)} }} {ERRORS}")
    return tuple(r(program, {7: (0,)}, error=(1,), strsize=STRSIZE) for r in RIGS)


def run(rig: Rig, s: bytes = b"", u: bytes = b"", *numbers: int) -> list[Value] | tuple[int, int]:
    """Return what one firing records, or the kind and value of its fault."""
    rig.memory = {A: (s + b"\0").ljust(8192, b"\xee"), B: (u + b"\0").ljust(8192, b"\xee")}
    rig.consume(rig.slot)
    rig.fire(7, {0: A, 1: B} | dict(enumerate(numbers, 2)))
    records = rig.records(rig.slot)
    assert len(records) == 1
    found: list[Value] = []
    for action, fields in enumerate(rig.layout.clauses[records[0].clause].fields):
        for field, raw in zip(fields, rig.fields(records[0], action), strict=True):
            if isinstance(field.type, StringType):
                found.append(raw.split(b"\0")[0])
            else:
                found.append(int.from_bytes(raw, "little", signed=t.is_signed(field.type)))
    if records[0].clause == 1:
        kind, value = found
        return int(kind), int(value)
    return found


def check(body: str, expected: list[Value] | tuple[int, int], *args: bytes | int) -> None:
    for rig in rigs(body):
        assert run(rig, *args) == expected, (type(rig).__name__, body, args)  # type: ignore[arg-type]


NULL = (lay.FAULT_BADADDR, 0)


texts = st.binary(max_size=20).map(lambda b: b.replace(b"\0", b"a"))


few = st.text("ab/.,", max_size=12).map(str.encode)


ints = st.integers(-15, 15) | st.sampled_from([-(1 << 31), (1 << 31) - 1])


longs = st.integers(-(1 << 63), (1 << 63) - 1)


many = settings(max_examples=draws(40, 120), deadline=None)
