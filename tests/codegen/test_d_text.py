"""D text through the front end and both machines, against the records of dtrace(1)."""

from __future__ import annotations

from typing import ClassVar

import pytest

from kinst.codegen.subroutines import prototypes
from kinst.core import layout as lay
from kinst.core.dtypes import StringType
from kinst.core.errors import KinstError
from kinst.dlang import typed as t
from kinst.dlang.api import Environment, compile_text
from tests.codegen.codegen_rig import (
    COMM,
    GS_BASE,
    NOW,
    PID,
    REGISTERS,
    RIGS,
    TASK_AT,
    HostRig,
    Rig,
    TargetRig,
    name_of,
    scratch,
)

both = pytest.mark.parametrize("rig", RIGS)
REGS = {r.d_name: r.index for r in REGISTERS}


def compiled(text: str) -> t.TypedProgram:
    return compile_text(text, "test", environment=Environment(REGS, subroutines=prototypes()))[1]


def values(run: Rig, record: object) -> list[int | bytes]:
    """Return all fields of a record: integers by their type, strings up to the NUL."""
    found: list[int | bytes] = []
    clause = record.clause  # type: ignore[attr-defined]
    for action, fields in enumerate(run.layout.clauses[clause].fields):
        for field, raw in zip(fields, run.fields(record, action), strict=True):  # type: ignore[arg-type]
            if isinstance(field.type, StringType):
                found.append(raw.split(b"\0")[0])
            else:
                found.append(int.from_bytes(raw, "little", signed=t.is_signed(field.type)))
    return found


@both
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("-7 / 2", -3),
        ("-7 % 3", -1),
        ("(char)regs[R_1]", -1),
        ("(unsigned char)regs[R_1]", 255),
        ("(int)regs[R_1] >> 4", -1),
        ("regs[R_1] >> 60", 15),
        ("(int)regs[R_2] == 5 ? 10 : 20", 10),
        ("regs[R_2] > 4 && regs[R_2] < 6", 1),
        ("!regs[R_2]", 0),
        ("~0", -1),
        ("execname == \"dd\"", 1),
        ("execname < \"dc\"", 0),
        ("probefunc != \"function_7\"", 0),
        ("0x7fffffff + 1", 1 << 31),  # like the literal of that value
        ("(int)(0x7fffffff + 1)", -(1 << 31)),
        ("*(int *)regs[R_3]", 0x04030201),
        ("*(unsigned short *)(regs[R_3] + 1)", 0x0302),
        ("((short *)regs[R_3])[1]", 0x0403),
        ("pid", PID),
        ("timestamp", NOW),
        ("id", 7),
    ],
)  # fmt: skip
def test_expressions(rig: type[Rig], expression: str, expected: int) -> None:
    run = rig(compiled(f"kinst::f:0 {{ trace({expression}); }}"), {7: (0,)},
              memory={0x1000: b"\1\2\3\4\5\6\7\x08"})  # fmt: skip
    run.fire(7, {1: (1 << 64) - 1, 2: 5, 3: 0x1000})
    (record,) = run.records(run.slot)
    assert values(run, record) == [expected]


@pytest.mark.parametrize("name", [b"", b"d", b"fourteen chars", b"fifteen letters"])
def test_the_letters_of_a_built_in_text(name: bytes) -> None:
    """Letters of a built-in text, also if only the code can read it."""

    class Named(HostRig):
        context: ClassVar[dict[int, int]] = {
            lay.CONTEXT_EXECNAME + n: int.from_bytes(name[8 * n :][:8], "little") for n in range(4)
        }

    letters = " ".join(f"trace(execname[{n}]);" for n in range(len(name) + 1))
    program = compiled(f"kinst::f:0 {{ {letters} trace(probefunc[9]); }}")
    for rig in (Named, TargetRig):
        run = rig(program, {7: (0,)})
        if isinstance(run, TargetRig):
            run.emulator.mem_write(GS_BASE + TASK_AT + 0x20, name.ljust(16, b"\0"))
        run.fire(7)
        (record,) = run.records(run.slot)
        assert values(run, record) == [*name, 0, ord("7")]


@both
def test_nothing_is_divided_by_zero(rig: type[Rig]) -> None:
    text = "kinst::f:0 { @ = count(); normalize(@, regs[R_1]); }"
    run = rig(
        compiled(text + "dtrace:::ERROR { trace(arg2); trace(arg4); trace(arg5); }"),
        {7: (0,)}, error=(1,),
    )  # fmt: skip
    for divisor in (0, 1, 1 << 63):
        run.consume(run.slot)
        run.fire(7, {1: divisor})
        (record,) = run.records(run.slot)
        expected = [divisor] if divisor else [2, lay.FAULT_DIVZERO, 0]
        assert [value for value in values(run, record) if value is not None][-3:] == expected
    assert run.table(0, run.slot) == {bytes(8): (3,)}


SCRIPT = """
kinst::f:0
/regs[R_1] != 2/
{
    seen++;
    last = execname;
    this_one = regs[R_1] * 2;
    printf("%d %s %s %x", seen, last, probefunc, this_one);
    @hits[execname, probename] = count();
    @sizes = quantize(regs[R_1]);
    @by["all"] = stddev((int)regs[R_1] - 5);
}

kinst::f:0
{
    trace(10 / (int)(regs[R_1] - 3));
}

dtrace:::ERROR
{
    printf("%d %d %d %d", arg1, arg2, arg4, arg5);
}

kinst::f:0
/regs[R_1] == 6/
{
    exit(seen);
}
"""


def test_a_script_does_the_same_on_both_machines() -> None:
    program = compiled(SCRIPT)
    outputs = []
    for rig in RIGS:
        run = rig(program, {8: (0, 1, 3)}, error=(2,), scratch=scratch(ring_size=16384))
        for i in range(7):
            run.fire(8, {1: i})
        rows = [(r.clause, r.probe, values(run, r)) for r in run.records(run.slot)]
        tables = [run.table(i, run.slot) for i in range(3)]
        outputs.append((rows, tables, run.read(run.scratch.ring_of(run.slot), 16384)))
        epid = run.epid(8, 1)
    assert outputs[0] == outputs[1]
    rows, tables, _ = outputs[0]
    expected: list[tuple[int, int, list[int | bytes]]] = []
    seen = 0
    for i in range(7):
        if i != 2:
            seen += 1
            expected.append((0, 8, [seen, COMM, b"function_8", i * 2]))
        if i == 3:
            expected.append((2, 3, [epid, 1, lay.FAULT_DIVZERO, 0]))
        else:
            quotient = abs(10) // abs(i - 3)
            expected.append((1, 8, [quotient if i > 3 else -quotient]))
    expected.append((3, 8, [seen]))
    assert rows == expected
    assert list(tables[0].values()) == [(6,)]
    kept = [0, 1, 3, 4, 5, 6]
    total = sum(i - 5 for i in kept)
    squares = sum((i - 5) ** 2 for i in kept)
    assert list(tables[2].values()) == [(6, total & (1 << 64) - 1, squares, 0)]
    (sizes,) = tables[1].values()
    assert {i: n for i, n in enumerate(sizes) if n} == {63: 1, 64: 1, 65: 1, 66: 3}


@both
def test_what_an_error_is_not_told(rig: type[Rig]) -> None:
    """arg1 to arg5 describe the fault (arg3 would be an offset of code): the others are 0."""
    names = [f"arg{k}" for k in (0, 3, 6, 7, 8, 9)]
    traced = " ".join(f"trace({name});" for name in names)
    program = compiled(f"kinst::f:0 {{ trace(1 / (int)regs[R_1]); }} dtrace:::ERROR {{ {traced} }}")
    run = rig(program, {7: (0,)}, error=(1,))
    run.fire(7)
    (record,) = run.records(run.slot)
    assert record.clause == 1 and values(run, record) == [0] * len(names)
    assert run.state(lay.STATE_ERRORS, run.slot) == 1


@both
def test_actions_about_aggregations_record_their_arguments(rig: type[Rig]) -> None:
    run = rig(
        compiled(
            "kinst::f:0 { @a = count(); printa(@a); clear(@a); trunc(@a, 5); trunc(@a);"
            " normalize(@a, 1000); denormalize(@a); }"
        ),
        {1: (0,)},
    )
    run.fire(1)
    (record,) = run.records(run.slot)
    fields = run.layout.clauses[0].fields
    assert [len(f) for f in fields] == [0, 0, 0, 1, 0, 1, 0]
    assert values(run, record) == [5, 1000]


def test_clauses_shared_by_probes_know_their_probe() -> None:
    program = compiled(
        "kinst::f:* { @[probefunc, probename] = count(); } kinst::f:1 { trace(epid); }"
    )
    for rig in RIGS:
        run = rig(program, {1: (0, 1), 2: (0,), 101: (1, 0)})
        for probe in (1, 2, 101, 101):
            run.fire(probe)
        keys = run.layout.aggregations[0].constant_keys
        assert keys is not None
        got = {keys[int.from_bytes(k, "little")]: v[0] for k, v in run.table(0, run.slot).items()}
        assert got == {
            (name_of(p).function.encode(), name_of(p).name.encode()): n
            for p, n in ((1, 1), (2, 1), (101, 2))
        }
        epids = [values(run, r) for r in run.records(run.slot)]
        assert epids == [[run.epid(1, 1)], [run.epid(101)], [run.epid(101)]]


def test_what_this_kernel_has_not_is_named() -> None:
    for text, message in (("vtimestamp", "vtimestamp"), ("uid", "uid")):
        with pytest.raises(KinstError, match=message):
            TargetRig(compiled(f"kinst::f:0 {{ trace({text}); }}"), {1: (0,)})
        HostRig(compiled(f"kinst::f:0 {{ trace({text}); }}"), {1: (0,)})


def test_the_ring_survives_a_random_consumer() -> None:
    """Records of several sizes, consumed at random moments: only counted records are lost."""
    program = compiled(
        'kinst::f:0 { trace(regs[R_1]); } kinst::f:0 /regs[R_1] & 1/ { printf("%s %d", probefunc,'
        " regs[R_1]); }"
    )
    for rig in RIGS:
        run = rig(program, {1: (0, 1)})
        got: list[int] = []
        for i in range(600):
            run.fire(1, {1: i})
            if i * i % 7 == 2 and i % 200 < 90:
                got += [int(values(run, r)[-1]) for r in run.records(run.slot)]
                run.consume(run.slot)
        got += [int(values(run, r)[-1]) for r in run.records(run.slot)]
        assert len(got) + run.state(lay.STATE_DROPS, run.slot) == 900
        assert got == sorted(got) and run.state(lay.STATE_DROPS, run.slot) > 0
