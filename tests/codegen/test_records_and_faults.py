"""Records, drops, faults, dtrace:::ERROR, exit, strings, built-ins: on both machines."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import ClassVar

import pytest

from kinst.codegen.code_machine import CodeMachine
from kinst.core import layout as lay
from kinst.core.dtypes import CHAR, INT, STRING, UINT, UINT64, StringType
from kinst.core.errors import KinstError
from kinst.core.probe import pointed_at
from kinst.dlang import typed as t
from kinst.dlang.typed import PrintfFormat
from tests.codegen.codegen_rig import (
    CFA_SLOT,
    CLOCK,
    COMM,
    GS_BASE,
    NOW,
    PID,
    PPID,
    REGISTERS,
    RIGS,
    SP_SLOT,
    SPAN,
    STACK,
    TASK_AT,
    HostRig,
    Rig,
    TargetRig,
    builtin,
    integer,
    name_of,
    program,
    reg,
    scratch,
    string,
    trace,
)
from tests.codegen.subroutines.test_kernel_objects import Counting

both = pytest.mark.parametrize("rig", RIGS)
BAD = 0x8123_4567_DEAD_D000  # no 63 bits say the same
COUNTED = t.AggregationVariable("", 0, (), t.AggFunction("sum"))


def text(data: bytes) -> bytes:
    return data.split(b"\0", 1)[0]


def u64(data: bytes) -> int:
    return int.from_bytes(data, "little")


def load(address: int, type_: object = UINT64) -> t.Load:
    return t.Load(type_, SPAN, integer(address, UINT64))  # type: ignore[arg-type]


@both
def test_header_and_fields(rig: type[Rig]) -> None:
    printf = t.PrintfAction(SPAN, PrintfFormat("", ()), (integer(-2, CHAR), reg(3), string(b"hi")))
    run = rig(program([trace(integer(7)), printf], []), {9: (0, 1)})
    run.fire(9, {3: 0x1122334455667788}, cpu=0)
    first, second = run.records(run.slot)
    assert (first.clause, first.probe, first.cpu, first.time) == (0, 9, 0, NOW)
    assert run.fields(first, 0) == [struct.pack("<i", 7)]
    byte, word, words = run.fields(first, 1)
    assert (byte, u64(word), text(words)) == (b"\xfe", 0x1122334455667788, b"hi")
    assert (second.clause, second.data, second.time) == (1, b"", NOW)
    assert run.state(lay.STATE_SEQUENCE, run.slot) == 2


@both
def test_predicate_decides(rig: type[Rig]) -> None:
    test = t.Binary(INT, SPAN, ">", reg(1), integer(10, UINT64))
    run = rig(program((test, [trace(reg(1))])), {1: (0,)})
    for value in (9, 10, 11, (1 << 64) - 1):
        run.fire(1, {1: value})
    assert [u64(r.data) for r in run.records(run.slot)] == [11, (1 << 64) - 1]


@both
def test_ring_wraps_pads_and_counts_drops(rig: type[Rig]) -> None:
    actions = [trace(reg(1)), trace(reg(2))]
    run = rig(program(actions), {1: (0,)})
    per_record = 40
    fits = 4096 // per_record  # 102, and 16 bytes are left over
    for i in range(fits + 5):
        run.fire(1, {1: i, 2: ~i})
    assert run.state(lay.STATE_DROPS, run.slot) == 5
    assert [u64(run.fields(r)[0]) for r in run.records(run.slot)] == list(range(fits))
    run.consume(run.slot)
    for i in range(250):
        run.fire(1, {1: i, 2: ~i})
        if i % 50 == 49:
            got = [u64(run.fields(r)[0]) for r in run.records(run.slot)]
            assert got == list(range(i - 49, i + 1))
            run.consume(run.slot)
    assert run.state(lay.STATE_DROPS, run.slot) == 5
    # Records that start over leave 16 bytes behind, 102 of them fit before each pad.
    turns, rest = divmod(fits + 250, fits)
    assert run.state(lay.STATE_HEAD, run.slot) == turns * 4096 + rest * per_record


@both
@pytest.mark.parametrize("seed", range(4))
def test_ring_against_a_model(rig: type[Rig], seed: int) -> None:
    """Records of 32 to 96 bytes, and a consumer that takes some now and then."""
    sizes = {p: 24 + 8 * p for p in range(1, 10)}
    run = rig(program(*([trace(reg(1))] * p for p in sizes)), {p: (p - 1,) for p in sizes})
    choose = random.Random(seed)
    head = tail = drops = padded = 0
    waiting: list[tuple[int, int, int]] = []  # end, clause, value
    for i in range(1500):
        probe = choose.choice(list(sizes))
        size = sizes[probe]
        run.fire(probe, {1: i})
        pad = 4096 - head % 4096 if head % 4096 + size > 4096 else 0
        if head + pad + size - tail > 4096:
            drops += 1
        else:
            head += pad + size
            padded += bool(pad)
            waiting.append((head, probe - 1, i))
        if choose.random() < 0.02:
            got = [(r.clause, u64(r.data[:8])) for r in run.records(run.slot)]
            assert got == [w[1:] for w in waiting]
            taken = choose.randrange(len(waiting) + 1)
            tail = waiting[taken - 1][0] if taken else tail
            waiting = waiting[taken:]
            run.write(run.scratch.state_of(run.slot) + lay.STATE_TAIL, struct.pack("<Q", tail))
    assert run.state(lay.STATE_HEAD, run.slot) == head
    assert run.state(lay.STATE_DROPS, run.slot) == drops > 0 and padded > 5


@both
def test_drop_skips_the_whole_clause(rig: type[Rig]) -> None:
    variable = t.Variable("n", INT, 0)
    step = t.EvaluateAction(SPAN, t.Step(INT, SPAN, variable, 1, False))
    run = rig(program([step, trace(integer(0, UINT64))], variables=(variable,)), {1: (0,)})
    for _ in range(200):
        run.fire(1)
    counted = struct.unpack("<i", run.read(run.scratch.globals, 4))[0]
    assert counted == 4096 // 32
    assert run.state(lay.STATE_DROPS, run.slot) == 200 - 4096 // 32


@both
def test_fault_commits_nothing_tells_error_and_goes_on(rig: type[Rig]) -> None:
    args = [trace(builtin(f"arg{i}")) for i in range(1, 6)]
    bad = [trace(integer(1)), trace(load(BAD)), trace(integer(2))]
    run = rig(program(bad, [trace(integer(5))], [*args, trace(builtin("epid", UINT))]),
              {1: (0, 1)}, error=(2,))  # fmt: skip
    run.fire(1)
    error, after = run.records(run.slot)
    values = [u64(run.fields(error, i)[0]) for i in range(6)]
    epid = run.epid(1)
    assert values == [epid, 2, 0, lay.FAULT_BADADDR, BAD, 100]
    assert (error.clause, error.probe, after.clause) == (2, 3, 1)
    assert run.state(lay.STATE_ERRORS, run.slot) == 1
    faulted = [run.state(lay.STATE_FAULT + 8 * i, run.slot) for i in range(4)]
    assert faulted == [epid, 2, lay.FAULT_BADADDR, BAD]


@both
def test_fault_in_predicate_second_clause_and_in_error_itself(rig: type[Rig]) -> None:
    zero = t.Binary(UINT64, SPAN, "/", integer(1, UINT64), reg(1))
    run = rig(program([], (zero, []), [trace(zero)]), {4: (0, 1)}, error=(2,))
    run.fire(4, {1: 0})
    run.fire(4, {1: 1})
    assert [r.clause for r in run.records(run.slot)] == [0, 0, 1]
    assert run.state(lay.STATE_ERRORS, run.slot) == 2
    faulted = [run.state(lay.STATE_FAULT + 8 * i, run.slot) for i in range(3)]
    assert faulted == [run.epid(4, 1), 0, lay.FAULT_DIVZERO]


@both
@pytest.mark.parametrize("timed", [True, False])
def test_the_last_faults_are_noted(rig: type[Rig], timed: bool) -> None:
    """Faults are noted as core/layout.py says (STATE_FAULTS); without a time if the kernel's clock
    is unknown, and then there are no records."""

    class Untimed(TargetRig):
        def target_machine(self) -> CodeMachine:
            return replace(super().target_machine(), clock=None)

    total = t.AggregateAction(SPAN, COUNTED, (), t.Load(UINT64, SPAN, reg(1)))
    zero = t.Binary(UINT64, SPAN, "/", integer(1, UINT64), reg(2))
    second = t.AggregateAction(SPAN, COUNTED, (), zero)
    clauses = [[total, second], *([[trace(reg(1))]] if timed else [])]
    code = program(*clauses, aggregations=(COUNTED,))
    kind = rig if timed or rig is HostRig else Untimed
    run = kind(code, {1: tuple(range(len(clauses)))}, memory={0x1000: bytes(8)})
    noted = []
    for number in range(lay.FAULTS_KEPT + 5):
        address = 0x1000 if number % 3 else BAD + number
        head = run.state(lay.STATE_HEAD, run.slot)
        run.fire(1, {1: address, 2: 0})
        what = (2, lay.FAULT_DIVZERO, 0) if number % 3 else (1, lay.FAULT_BADADDR, address)
        action, fault, value = what
        time = NOW if timed or rig is HostRig else 0
        noted.append((run.epid(1) | fault << 32 | action << 40, value, time, head))
        run.consume(run.slot)
    assert run.state(lay.STATE_TOLD, run.slot) == len(noted)
    place = run.scratch.state_of(run.slot) + lay.STATE_FAULTS
    kept = list(struct.iter_unpack("<4Q", run.read(place, 32 * lay.FAULTS_KEPT)))
    assert [kept[n % lay.FAULTS_KEPT] for n in range(5, len(noted))] == noted[5:]


def test_a_firing_and_what_is_told_of_its_faults_have_one_time() -> None:
    """The time is the same however often a clause asks, even if the clock advances at each
    read."""
    now = trace(builtin("timestamp"))
    run = Counting(program([now], [now, trace(load(BAD))], [now], [now]), {1: (0, 1, 2)}, (3,))
    seen = []
    for _ in range(3):
        run.consume(0)
        run.fire(1)
        records = run.records(0)
        assert [record.clause for record in records] == [0, 3, 2]
        times = {record.time for record in records}
        times |= {u64(run.fields(record)[0]) for record in records}
        seen += times
        assert len(times) == 1
    assert seen == sorted(set(seen))


@both
def test_exit_ends_the_firing_and_tracing(rig: type[Rig]) -> None:
    run = rig(program([t.ExitAction(SPAN, integer(3)), trace(integer(4))], []), {1: (0, 1)})
    run.fire(1)
    (record,) = run.records(run.slot)
    assert run.fields(record, 0) + run.fields(record, 1) == [b"\3\0\0\0", b"\4\0\0\0"]
    assert run.read(lay.HEADER_ACTIVE, 8) == bytes(8)
    run.fire(1)
    # The host runs what it is told to (END comes after exit); the target stays silent.
    assert len(run.records(run.slot)) == (2 if rig is HostRig else 1)
    assert run.state(lay.STATE_SEQUENCE, run.slot) % 2 == 0


@both
def test_nested_firing_is_dropped_and_counted(rig: type[Rig]) -> None:
    run = rig(program([]), {1: (0,)})
    run.write(run.scratch.state_of(run.slot) + lay.STATE_SEQUENCE, struct.pack("<Q", 7))
    run.fire(1)
    assert run.records(run.slot) == []
    assert run.state(lay.STATE_NESTED, run.slot) == 1
    assert run.state(lay.STATE_SEQUENCE, run.slot) == 7


@both
def test_builtins(rig: type[Rig]) -> None:
    names = ["id", "pid", "ppid", "curthread", "timestamp", "walltimestamp", "timestamp"]
    texts = ["probeprov", "probemod", "probefunc", "probename", "execname"]
    actions = [trace(builtin(n)) for n in names] + [trace(builtin(n, STRING)) for n in texts]
    actions.append(trace(builtin("cpu", INT)))
    run = rig(program(actions), {77: (0,)}, strsize=32)
    run.fire(77)
    (record,) = run.records(run.slot)
    numbers = [u64(run.fields(record, i)[0]) for i in range(len(names))]
    wall = NOW + CLOCK.wall_offset
    assert numbers == [77, PID, PPID, GS_BASE + TASK_AT, NOW, wall, NOW]
    name = name_of(77)
    expected = [name.provider, name.module, name.function, name.name]
    got = [text(run.fields(record, len(names) + i)[0]) for i in range(5)]
    assert got == [p.encode() for p in expected] + [COMM]


def test_the_host_is_told_what_it_runs_for() -> None:
    """Each word of the context (core/layout.py) belongs to one variable, and to no other."""
    names = ("cpu", "pid", "tid", "ppid", "uid", "gid", "curthread", "timestamp", "vtimestamp",
             "walltimestamp", "caller")  # fmt: skip
    places = (lay.CONTEXT_CPU, lay.CONTEXT_PID, lay.CONTEXT_TID, lay.CONTEXT_PPID,
              lay.CONTEXT_UID, lay.CONTEXT_GID, lay.CONTEXT_CURTHREAD, lay.CONTEXT_TIMESTAMP,
              lay.CONTEXT_VTIMESTAMP, lay.CONTEXT_WALLTIMESTAMP, lay.CONTEXT_CALLER)  # fmt: skip
    told = {place: (k + 1) * 0x0101_0101_0101_0101 for k, place in enumerate(places)}

    class Told(HostRig):
        context = told

    run = Told(program([trace(builtin(name)) for name in names]), {1: (0,)})
    run.fire(1)
    (record,) = run.records(run.slot)
    found = {name: u64(run.fields(record, k)[0]) for k, name in enumerate(names)}
    assert found == {name: told[place] for name, place in zip(names, places, strict=True)}


@pytest.mark.parametrize(
    ("kernel", "user", "outside"),
    [(0, 1, 1), (0, 0x7FFF_0000_1235, 1), (5, 0, 0), (0, 0, 0), (1 << 63, 0, 0), (1, 1, 0)],
)
def test_user_mode_is_where_a_sample_has_no_place_in_the_kernel(
    kernel: int, user: int, outside: int
) -> None:
    class Sampled(HostRig):
        context: ClassVar[dict[int, int]] = {lay.CONTEXT_ARGS: kernel, lay.CONTEXT_ARGS + 1: user}

    run = Sampled(program([trace(builtin("usermode", INT))]), {1: (0,)})
    run.fire(1)
    (record,) = run.records(run.slot)
    assert run.fields(record) == [outside.to_bytes(4, "little")]
    target = TargetRig(program([trace(builtin("usermode", INT))]), {1: (0,)})
    target.fire(1)
    (record,) = target.records(0)
    assert target.fields(record) == [bytes(4)], "what is planted is in the kernel"


def test_arguments_on_each_machine() -> None:
    """The host has arguments in its context if the descriptor has none; the target has none
    then."""
    actions = [trace(builtin("arg0")), trace(builtin("arg9"))]
    host, target = HostRig(program(actions), {1: (0,)}), TargetRig(program(actions), {1: (0,)})
    for run in (host, target):
        run.fire(1)
    (a,) = host.records(2)
    assert struct.unpack("<QQ", a.data) == (1000, 1009)
    assert target.records(0) == [] and target.state(lay.STATE_ERRORS, 0) == 1
    assert target.state(lay.STATE_FAULT + 16, 0) == lay.FAULT_ILLOP
    assert target.state(lay.STATE_FAULT + 24, 0) == 0, "as of DTrace's other illegal operations"
    assert target.code.arguments == {(0,): frozenset({0, 9})}
    with pytest.raises(KinstError, match="vtimestamp is not available"):
        TargetRig(program([trace(builtin("vtimestamp"))]), {1: (0,)})


@both
def test_arguments_are_where_the_descriptor_says(rig: type[Rig]) -> None:
    stack = STACK + 0x3800
    run = rig(
        program(*([trace(builtin(f"arg{i}"))] for i in range(8))),
        {1: tuple(range(8))},
        memory={stack: struct.pack("<3Q", 7, 8, 9)},
        arguments=[
            (lay.ARGUMENT_SLOT, 4), (lay.ARGUMENT_CONSTANT, -5), (lay.ARGUMENT_STACK, 16),
            (lay.ARGUMENT_NONE, 0), (lay.ARGUMENT_STACK, 1 << 20),
            *((a.kind, a.value) for a in (pointed_at(5, 8), pointed_at(5, -8), pointed_at(4, 0))),
        ],
    )  # fmt: skip
    by_slot = {r.slot: r.index for r in REGISTERS}
    run.fire(1, {by_slot[4]: 44, by_slot[5]: stack + 8, by_slot[SP_SLOT]: stack})
    got = [(r.clause, u64(r.data)) for r in run.records(run.slot)]
    assert got == [(0, 44), (1, (1 << 64) - 5), (2, 9), (5, 9), (6, 7)]
    # A missing value is an error, and the clauses after it still run.
    assert run.state(lay.STATE_ERRORS, run.slot) == 3
    assert run.state(lay.STATE_FAULT + 16, run.slot) == lay.FAULT_BADADDR


def test_caller_follows_the_site() -> None:
    stack = STACK + 0x3800
    run = TargetRig(program([trace(builtin("caller"))]), {1: (0,)}, memory={0x9008: b"\x22" * 8})
    by_slot = {r.slot: r.index for r in REGISTERS}
    run.emulator.mem_write(stack + 8, struct.pack("<Q", 0xFFFF_FFFF_8123_4567))
    cfa = run.site(1) - run.base + lay.SITE_CFA_SLOT
    run.write(cfa, struct.pack("<I", SP_SLOT))
    run.fire(1, {by_slot[SP_SLOT]: stack})
    assert run.reads == []
    run.write(cfa, struct.pack("<I", CFA_SLOT))
    run.fire(1, {by_slot[CFA_SLOT]: 0x9000})
    run.fire(1, {by_slot[CFA_SLOT]: BAD})
    run.write(cfa, struct.pack("<I", 0xFFFFFFFF))
    run.fire(1)
    assert [u64(r.data) for r in run.records(0)] == [0xFFFF_FFFF_8123_4567, 0x2222222222222222, 0]
    assert run.state(lay.STATE_ERRORS, 0) == 1
    assert run.code.caller == {(0,)} and SP_SLOT in run.code.slots[(0,)]


@pytest.mark.parametrize("place", [0xFFFF_8000_1234_5678, 0xFFFF_FFFF_8123_4568, 0x12_3456_7890, 0])
def test_a_signed_return_address_is_told_without_its_signature(place: int) -> None:
    """Arm's pointer authentication replaces bits that are all like bit 55 (XPACI).

    With addresses of 48 bits, these are 48 to 54 and the topmost eight.  Only the kernel's
    addresses are looked for.
    """
    bits = 0xFF7F_0000_0000_0000

    class Signing(TargetRig):
        def target_machine(self) -> CodeMachine:
            return replace(super().target_machine(), signature_bits=bits)

    run = Signing(program([trace(builtin("caller"))]), {1: (0,)})
    by_slot = {r.slot: r.index for r in REGISTERS}
    run.write(run.site(1) - run.base + lay.SITE_RA_OFFSET, struct.pack("<i", lay.RA_IN_SLOT))
    for k in range(6):
        kernel = place >> 55 & 1
        there = place ^ random.Random(k).getrandbits(64) & bits if kernel and k else place
        run.consume(0)
        run.fire(1, {by_slot[CFA_SLOT]: there})
        (record,) = run.records(0)
        assert u64(record.data) == place


@both
def test_dynamic_register_index(rig: type[Rig]) -> None:
    index = t.Cast(INT, SPAN, reg(0))
    run = rig(program([trace(t.RegisterRead(UINT64, SPAN, index))]), {1: (0,)})
    for i in (3, 15, 16, -1):
        run.fire(1, {0: i, 3: 333, 15: 1515})
    assert [u64(r.data) for r in run.records(run.slot)] == [333, 1515]
    assert run.state(lay.STATE_ERRORS, run.slot) == 2
    assert run.state(lay.STATE_FAULT + 16, run.slot) == lay.FAULT_ILLOP
    assert run.state(lay.STATE_FAULT + 24, run.slot) == (1 << 64) - 1
    if isinstance(run, TargetRig):
        assert run.code.slots[(0,)] == {r.slot for r in REGISTERS}


@both
def test_strings_are_read_up_to_their_end_and_not_past_the_page(rig: type[Rig]) -> None:
    page_end = 0x5000 - 11
    memory = {page_end - 100: b"x" * 100 + b"0123456789\0", 0x7003: b"y" * 200}
    two = [trace(load(page_end, STRING)), trace(load(0x7003, STRING)), trace(load(0x4FFF, STRING))]
    run = rig(program(two), {1: (0,)}, memory=memory)
    run.fire(1)
    (record,) = run.records(run.slot)
    got = [text(run.fields(record, i)[0]) for i in range(3)]
    assert got == [b"0123456789", b"y" * 63, b""]
    assert all(a // 4096 == (a + n - 1) // 4096 for a, n in run.reads)  # type: ignore[attr-defined]
    unterminated = rig(
        program([trace(load(0x4FF0, STRING))]), {1: (0,)}, memory={0x4FF0: b"z" * 16}
    )
    unterminated.fire(1)
    assert unterminated.records(unterminated.slot) == []
    assert unterminated.state(lay.STATE_ERRORS, unterminated.slot) == 1


@both
def test_loads_of_every_size(rig: type[Rig]) -> None:
    from_memory = bytes(range(0xF1, 0xF9))
    types = [CHAR, UINT, INT, UINT64]
    run = rig(program([trace(load(0x1001, ty)) for ty in types]), {1: (0,)},
              memory={0x1001: from_memory})  # fmt: skip
    run.fire(1)
    (record,) = run.records(run.slot)
    assert [run.fields(record, i)[0] for i in range(4)] == [from_memory[: ty.size] for ty in types]


STRINGS = [b"", b"a", b"ab", b"b", b"\xff", b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", b"aa"]


@both
@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
def test_string_comparison(rig: type[Rig], op: str) -> None:
    pairs = [(a, b) for a in STRINGS for b in STRINGS]
    compared = [trace(t.Binary(INT, SPAN, op, string(a), string(b))) for a, b in pairs]
    run = rig(program(compared), {1: (0,)})
    run.fire(1)
    (record,) = run.records(run.slot)
    got = [u64(run.fields(record, i)[0]) for i in range(len(pairs))]
    expected = [
        {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
        for a, b in pairs
    ]
    assert got == expected


@both
def test_string_variables_and_choice(rig: type[Rig]) -> None:
    variable = t.Variable("s", STRING, 0)
    small = t.Variable("small", StringType(4), 1)
    chosen = t.Conditional(STRING, SPAN, reg(1), string(b"yes"), builtin("execname", STRING))
    read = t.GlobalRead(STRING, SPAN, variable)
    actions = [
        trace(read),
        t.EvaluateAction(SPAN, t.Assign(STRING, SPAN, variable, chosen)),
        t.EvaluateAction(SPAN, t.Assign(STRING, SPAN, small, string(b"123456"))),
        trace(read),
        trace(t.Binary(INT, SPAN, "==", read, string(b"yes"))),
        trace(t.GlobalRead(StringType(4), SPAN, small)),
    ]
    run = rig(program(actions, variables=(variable, small)), {1: (0,)})
    run.fire(1, {1: 5})
    run.fire(1, {1: 0})
    rows = []
    for record in run.records(run.slot):
        values = [run.fields(record, i) for i in (0, 3, 4, 5)]
        rows.append([text(v[0]) for v in values])
    assert rows == [[b"", b"yes", b"\1", b"123"], [b"yes", COMM, b"", b"123"]]


def test_both_machines_write_the_same_bytes() -> None:
    variable = t.Variable("n", UINT64, 0)
    both_ = program(
        [
            trace(t.Step(UINT64, SPAN, variable, 3, True)),
            trace(builtin("execname", STRING)),
            trace(load(0x1000)),
            t.PrintfAction(
                SPAN, PrintfFormat("", ()), (builtin("probefunc", STRING), reg(2), reg(14))
            ),
        ],
        (t.Binary(INT, SPAN, "<", reg(2), integer(2, UINT64)), [t.ClearAction(SPAN, None)]),  # type: ignore[arg-type]
        variables=(variable,),
    )
    runs = [rig(both_, {1: (0, 1), 2: (1, 0)}, memory={0x1000: b"abcdefgh"}) for rig in RIGS]
    for run in runs:
        for i in range(8):
            run.fire(1 + i % 2, {2: i, 14: i << 50})
    rings = [run.read(run.scratch.ring_of(run.slot), 4096) for run in runs]
    heads = [run.state(lay.STATE_HEAD, run.slot) for run in runs]
    assert rings[0] == rings[1] and heads[0] == heads[1] > 1500


def test_each_cpu_has_its_own_ring() -> None:
    run = TargetRig(program([trace(builtin("cpu", INT))]), {1: (0,)})
    for cpu in (0, 1, 1):
        run.fire(1, cpu=cpu)
    assert [(r.cpu, u64(r.data)) for r in run.records(1)] == [(1, 1), (1, 1)]
    assert len(run.records(0)) == 1 and run.records(2) == []


def test_what_does_not_fit_is_refused() -> None:
    wide = program([trace(builtin("execname", STRING))])
    with pytest.raises(KinstError, match="does not fit the buffer"):
        HostRig(wide, {1: (0,)}, strsize=5000)
    many = program(
        [t.PrintfAction(SPAN, PrintfFormat("", ()), tuple(load(8, STRING) for _ in range(40)))]
    )
    with pytest.raises(KinstError, match="bytes for its strings"):
        HostRig(many, {1: (0,)}, strsize=512, scratch=scratch(ring_size=65536))
