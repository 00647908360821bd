"""Counts and output of D programs on the fake machine, in every way of planting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kinst.session import check as checking
from kinst.session import enable
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_reference import steps
from tests.fake.fake_tracing import Traced, trace
from tests.tiers import ISAS

WAYS = ("auto", "trap", "stop")
pytestmark = pytest.mark.parametrize("isa", ISAS)
both = pytest.mark.parametrize("way", WAYS)


def leaf_calls(counts: Sequence[int]) -> list[Call]:
    """Return a workload of counts[cpu] calls of leaf(n, 2n) on each CPU."""
    return [Call("leaf", (n, 2 * n), cpu) for cpu, many in enumerate(counts) for n in range(many)]


def run(isa: str, program: str, workload: Sequence[Call], way: str = "auto", **more: str) -> Traced:
    """Trace on a new machine, and check that its text is as before afterwards."""
    machine = FakeMachine(isa)
    before = machine.text
    traced = trace(machine, program, workload, settings={"plant": way, **more})
    assert machine.text == before
    assert machine.idle
    return traced


@both
def test_counts_are_exact_on_each_cpu(isa: str, way: str) -> None:
    traced = run(isa, "kinst::leaf:0 { @[cpu] = count(); }", leaf_calls([17, 23]), way)
    assert traced.numbers == [0, 17, 1, 23]


def test_a_count_without_a_call_is_exact(isa: str) -> None:
    """@ = count() alone is one addition to memory, without a call (CountBody)."""
    calls = [*leaf_calls([500, 300]), Call("fibonacci", (6,), 1)]
    fibonacci = FakeMachine(isa).address("fibonacci")
    recursions = sum(step.address == fibonacci for step in steps(isa, calls, ["fibonacci"]))
    program = "kinst::leaf:0,kinst::fibonacci:0 { @[probefunc] = count(); }"
    traced = run(isa, program, calls)
    assert traced.out.split() == ["fibonacci", str(recursions), "leaf", "800"]
    assert recursions > 6


@both
def test_a_predicate_decides(isa: str, way: str) -> None:
    program = "fbt::leaf:entry /arg0 % 3 == 1/ { @[arg0] = count(); }"
    traced = run(isa, program, leaf_calls([10, 5]), way)
    assert Counter(dict(zip(traced.numbers[::2], traced.numbers[1::2], strict=True))) == Counter(
        {1: 2, 4: 2, 7: 1}
    )


@both
def test_the_current_task_is_told(isa: str, way: str) -> None:
    program = (
        'kinst::leaf:0 { printf("%s %d %d %d %d %d\\n", execname, pid, tid, ppid, uid, gid); }'
    )
    traced = run(isa, program, leaf_calls([1, 1]), way)
    assert sorted(traced.lines) == ["alpha 100 100 1 10 20", "beta 200 201 100 11 21"]


@both
def test_arguments_and_results(isa: str, way: str) -> None:
    program = """
        fbt::many:entry { printf("%d %d %d\\n", arg0, arg5, arg7); }
        fbt::leaf:return { printf("= %d\\n", arg1); }"""
    calls = [Call("many", tuple(range(1, 10))), Call("leaf", (20, 11))]
    traced = run(isa, program, calls, way)
    assert traced.lines == ["1 6 8", "= 42"]


def test_returns_are_the_same_if_conditions_read_addresses_from_arguments(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = 'fbt:::return /probefunc != "idle"/ { @[probefunc] = count(); }'
    calls = [Call("exercise", (n,)) for n in (3, 8)]
    expected = run(isa, program, calls, "auto").lines
    monkeypatch.setattr(enable, "FEW_CONDITIONS", 0)
    assert expected and run(isa, program, calls, "auto").lines == expected


@both
def test_thread_local_variables_are_each_threads_own(isa: str, way: str) -> None:
    program = """
        fbt::work:entry { self->calls = 0; self->inside = 1; }
        kinst::leaf:0 /self->inside/ { self->calls++; }
        fbt::work:return { @[tid] = sum(self->calls); self->inside = 0; self->calls = 0; }"""
    traced = run(isa, program, [Call("work", (5,), 0), Call("work", (9,), 1), Call("leaf", (1,))],
                 way)  # fmt: skip
    assert traced.numbers == [100, 5, 201, 9]


@both
def test_quantize_and_the_other_functions(isa: str, way: str) -> None:
    program = """
        fbt::leaf:entry { @low = min(arg0); @high = max(arg0); @all = sum(arg0);
                          @mean = avg(arg0); @power = quantize(arg0); }"""
    traced = run(isa, program, leaf_calls([9, 3]), way)
    values = [*range(9), *range(3)]
    numbers = [int(line) for line in traced.lines if line.strip().isdecimal()]
    assert numbers == [min(values), max(values), sum(values), sum(values) // len(values)]
    rows = [line.split() for line in traced.lines if "|" in line and "value" not in line]
    buckets = {int(row[0]): int(row[-1]) for row in rows if row[-1] != "0"}
    assert buckets == Counter(1 << v.bit_length() - 1 if v else 0 for v in values)


@both
def test_speculations_are_kept_or_dropped(isa: str, way: str) -> None:
    program = """
        fbt::work:entry { self->spec = speculation(); self->wanted = arg0; }
        fbt::leaf:entry /self->spec/ { speculate(self->spec); printf("leaf %d\\n", self->wanted); }
        fbt::work:return /self->spec && self->wanted > 2/ { commit(self->spec); self->spec = 0; }
        fbt::work:return /self->spec/ { discard(self->spec); self->spec = 0; }"""
    calls = [Call("work", (n,)) for n in (1, 3, 2, 4)]
    traced = run(isa, program, calls, way, nspec="4")
    assert traced.lines == ["leaf 3"] * 3 + ["leaf 4"] * 4


@both
def test_a_bad_address_is_a_fault_and_the_kernel_goes_on(isa: str, way: str) -> None:
    program = """
        fbt::probe_byte:entry { printf("%x\\n", *(char *)arg0); }
        ERROR { @[arg4, arg5] = count(); }"""
    machine = FakeMachine(isa)
    good = machine.address("init_task") + 28  # comm: "init"
    calls = [Call("probe_byte", (at,)) for at in (good, 8, 0xFFFF_FFFF_0000_0000 - 1, good + 1)]
    before = machine.text
    traced = trace(machine, program, calls, settings={"plant": way})
    assert machine.text == before
    assert traced.lines[:2] == ["69", "6e"]
    rows = sorted(tuple(map(int, line.split())) for line in traced.lines[2:])
    assert rows == [(1, 8, 1), (1, 0xFFFF_FFFF_0000_0000 - 1 - (1 << 64), 1)][::-1]
    assert machine.results() == [0x69, (1 << 64) - 14, (1 << 64) - 14, 0x6E]
    told = [text for text in traced.said if "invalid address" in text]
    assert len(told) == 2


@both
def test_a_user_address_is_told(isa: str, way: str) -> None:
    """The message for another address, and for one near NULL, has no such hint."""
    program = "fbt::probe_byte:entry { trace(*(char *)arg0); }"
    calls = [Call("probe_byte", (at,)) for at in (0x179C48F0, 8, 0xFFFF_FFFF_0000_0000 - 1)]
    said = run(isa, program, calls, way).said
    told = {text.partition("invalid address ")[2] for text in said if "invalid address" in text}
    hint = " (a user program's address: copyin() and copyinstr() read its memory)"
    assert told == {
        f"(0x179c48f0) in action #1{hint}",
        "(0x8) in action #1",
        "(0xfffffffeffffffff) in action #1",
    }


def test_an_instruction_that_faults_on_purpose_may_be_planted(isa: str) -> None:
    """The displaced copy faults at another address; kinst tells that address to the kernel's
    search for a fix-up."""
    machine = FakeMachine(isa)
    calls = [Call("probe_byte", (8,)), Call("probe_byte", (machine.address("init_task") + 28,))]
    before = machine.text
    traced = trace(machine, "kinst::probe_byte: { @ = count(); }", calls)
    plain = FakeMachine(isa)
    plain.run_all(calls)
    assert machine.results() == plain.results() == [(1 << 64) - 14, 0x69]
    assert traced.numbers[0] > 6
    assert machine.word("faults") == 1
    assert machine.word("bad_faults") == 0
    assert machine.text == before


@both
def test_exit_ends_the_trace_with_its_status(isa: str, way: str) -> None:
    program = """
        kinst::leaf:0 { @ = count(); }
        fbt::leaf:entry /arg0 == 6/ { exit(7); }
        END { printf("end\\n"); }"""
    machine = FakeMachine(isa)
    before = machine.text
    traced = trace(machine, program, leaf_calls([5000]), settings={"plant": way})
    assert traced.status == 7
    assert traced.lines[0] == "end"
    assert traced.lines[1].split() == ["7"]
    assert machine.text == before


def test_begin_and_end_run_before_and_after(isa: str) -> None:
    program = """
        BEGIN { x = 3; printf("begin\\n"); }
        fbt::leaf:entry { x += arg0; }
        END { printf("end %d\\n", x); }"""
    traced = run(isa, program, leaf_calls([5]))
    assert traced.lines == ["begin", f"end {3 + sum(range(5))}"]


def test_what_a_full_buffer_loses_is_counted(isa: str) -> None:
    """Printed records and lost records add up to all records."""
    values = ", ".join(["arg0"] * 40)
    program = f'fbt::leaf:entry {{ printf("{" %d" * 40}\\n", {values}); }}'
    traced = run(isa, program, [Call("work", (5000,))], bufsize="4k")
    drops = re.findall(r"(\d+) drops? on CPU", "\n".join(traced.said))
    lost = sum(map(int, drops))
    assert len(traced.lines) + lost == 5000
    assert lost


def test_strings_of_the_kernel(isa: str) -> None:
    machine = FakeMachine(isa)
    name = int.from_bytes(machine.read(machine.address("files"), 8), "little")
    traced = trace(machine, 'fbt::open_file:entry { printf("%s\\n", stringof(arg0)); }',
                   [Call("open_file", (name, 1))])  # fmt: skip
    assert traced.lines == ["/etc/passwd"]


def test_functions_that_a_hit_runs_through_are_refused(isa: str) -> None:
    machine = FakeMachine(isa)
    traced = trace(machine, "kinst::leaf:,kinst::find_fixup: { @[probefunc] = count(); }",
                   leaf_calls([3]))  # fmt: skip
    assert traced.out.split()[0] == "leaf"
    assert any("cannot be planted" in text for text in traced.said)


def mixed(count: int) -> list[tuple[int, int]]:
    """Return the arguments with which work(count) calls leaf(), by kernel.c."""
    total, calls = 0, []
    for i in range(count):
        value = i * 3 + total
        value ^= 0x55 if value & 1 else 0
        calls.append((value, i))
        total += value + 2 * i
    return calls


@both
def test_inline_functions_and_local_variables(isa: str, way: str) -> None:
    program = """
        kinst::mix:entry { @in = count(); }
        kinst::mix:return { @out = count(); }
        kinst::leaf:0 { printf("%d %d\\n", locals->a, locals->b); }"""
    traced = run(isa, program, [Call("work", (4,))], way)
    assert traced.lines[:-2] == [f"{a} {b}" for a, b in mixed(4)]
    assert [line.split()[-1] for line in traced.lines[-2:]] == ["4", "4"]


def test_a_kernel_of_which_little_is_known_is_stopped_at_each_hit(isa: str) -> None:
    """The system `elf` knows only this kernel's file with its DWARF."""
    machine = FakeMachine(isa)
    before = machine.text
    program = """
        fbt::work:entry { printf("work %d\\n", arg0); }
        kinst::mix:entry { @[probefunc] = count(); }"""
    traced = trace(machine, program, [Call("work", (3,))], unknown=True)
    assert machine.text == before
    assert traced.lines[0] == "work 3"
    assert traced.lines[-1].split() == ["work", "3"]


def test_local_variables_of_such_a_kernel(isa: str) -> None:
    program = 'kinst::leaf:0 { printf("%d %d\\n", locals->a, locals->b); }'
    traced = trace(FakeMachine(isa), program, [Call("work", (4,))], unknown=True)
    assert traced.lines == [f"{a} {b}" for a, b in mixed(4)]


def test_a_program_is_checked_twice_at_most(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is checked as written, and again after $target, inline functions and local
    variables have been replaced."""
    checked: list[object] = []
    plain = checking.compile_programs

    def counting(programs: Any, environment: Any) -> object:
        checked.append(programs)
        return plain(programs, environment)

    monkeypatch.setattr(checking, "compile_programs", counting)
    program = """
        kinst::mix:entry /pid != $target/ { @in = count(); }
        kinst::leaf:0 { @ = sum(locals->a); }"""
    run(isa, program, [Call("work", (4,))])
    assert len(checked) == 2


@pytest.mark.parametrize("way", ["auto", pytest.param("trap", marks=pytest.mark.full), "stop"])
@pytest.mark.parametrize(
    ("clause", "fires", "told"),
    [
        ("{ @ = count(); }", False, True),
        ("{ @[execname] = quantize(arg0); }", False, True),
        ("{ trace(cpu); }", False, True),
        ("{ @ = count(); }", True, False),
        ("{ @[arg0] = quantize(arg0); }", True, False),
        ("{ trace(cpu); }", True, False),
        ("/arg0 == 12345/ { trace(cpu); }", True, False),  # it fires; no predicate was true
        ("{ n++; }", True, False),
        ("{ @ = count(); clear(@); }", True, False),
    ],
)
def test_a_trace_without_a_firing_says_so(
    isa: str, way: str, clause: str, fires: bool, told: bool
) -> None:
    calls = leaf_calls([3, 0]) if fires else [Call("fibonacci", (3,), 0)]
    settings = {"plant": way, "quiet": "0", "bufsize": "256k", "aggsize": "256k"}
    said = trace(FakeMachine(isa), f"fbt::leaf:entry {clause}", calls, settings=settings).said
    assert told == any("kinst: no probe fired: 1 instruction was planted" in one for one in said)
