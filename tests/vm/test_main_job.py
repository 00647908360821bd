"""kinst's main job on a real amd64 guest.

Tests exact counts in each way of planting, what a clause sees, inline functions, fbt, the command
of -c, warm starts, and that the kernel's text is restored.  Of tests/vm, `make test` runs only
this file and a few examples of documents (language/test_page_examples.py).  All tests but the last
three share one guest.  The authority is the guest's program: it calls
read(2) exactly so many times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kinst
from kinst.api import Machine
from kinst.kernels.fetch import Prepared
from kinst.results import Result
from tests.vm import command
from tests.vm.attach.attach_guest import attach_guest
from tests.vm.command import Row, Running, counts
from tests.vm.language.machine_code import entry_line

pytestmark = [pytest.mark.vm, pytest.mark.main_job]

READS = 20_000
OURS = '/execname == "reads"/'
COUNT = "{ @[probename] = count(); }"


@pytest.fixture(scope="module")
def machine(reads: Path) -> Iterator[Machine]:
    with kinst.boot(copies=[reads]) as opened:
        yield opened


@pytest.fixture(scope="module")
def once(machine: Machine) -> dict[str, str]:
    """Return offsets of the instructions of vfs_read that run once in each call, each with the way
    of planting it."""
    probes = machine.probes("kinst::vfs_read:")
    rows = [Row(p.function, int(p.name), p.code, p.text, p.way) for p in probes]
    return {str(row.offset): row.way for row in entry_line(rows)}


def counted(machine: Machine, program: str, plant: str = "", times: int = READS) -> Result:
    options = {"plant": plant} if plant else {}
    result = machine.run(program, f"reads {times}", options=options)
    assert f"reads {times} ns" in result.output.decode()
    assert result.status == 0 and result.reason == "command"
    assert not result.lost and not result.faults
    return result


@pytest.mark.parametrize(
    ("plant", "times"),
    [("", READS), ("no-chain", READS), ("no-run", READS), ("trap", READS), ("stop", 50)],
)
def test_counts_are_exact(machine: Machine, once: dict[str, str], plant: str, times: int) -> None:
    """Jumps, runs and traps, as kinst chooses them and with each way forced."""
    assert {"jump", "run"} <= set(once.values())
    sites = ", ".join(f"kinst::vfs_read:{offset}" for offset in once)
    result = counted(machine, f"{sites} {OURS} {COUNT}", plant, times)
    assert result.aggregations[""] == {(offset,): times for offset in once}


def test_a_clause_sees_registers_and_memory(machine: Machine) -> None:
    """read(2) asks for one byte: rdx is 1.  Sums and keys are computed without a loss."""
    program = f"""
        kinst::vfs_read:5 {OURS} {{ @[execname, regs[R_RDX]] = sum(regs[R_RDX] + 2); hits++; }}
        END {{ printf("%d", hits); }}
    """
    result = counted(machine, program)
    assert result.aggregations[""] == {("reads", 1): 3 * READS}
    (record,) = result.records
    assert [value.value for value in record.values] == [READS]


def test_records_are_all_there(machine: Machine) -> None:
    result = counted(machine, f"kinst::vfs_read:0 {OURS} {{ trace(execname); }}", times=2000)
    assert [[v.value for v in record.values] for record in result.records] == [["reads"]] * 2000


def test_an_inline_function_is_entered_and_left(machine: Machine) -> None:
    """ksys_read() begins with fdget_pos(), which the compiler inlines there."""
    program = f"""
        kinst::fdget_pos:entry {OURS} {{ @in[probefunc] = count(); }}
        kinst::fdget_pos:return {OURS} {{ @out[probefunc] = count(); }}
    """
    result = counted(machine, program)
    assert result.aggregations["in"]["ksys_read",] == READS
    assert result.aggregations["out"]["ksys_read",] == READS


def test_a_function_is_entered_and_returns(machine: Machine) -> None:
    """Argument and return value: one byte is asked for, and one is read."""
    program = f"""
        fbt::vfs_read:entry {OURS} {{ @in[args[2]] = count(); }}
        fbt::vfs_read:return {OURS} {{ @out[args[1]] = count(); }}
    """
    result = counted(machine, program)
    assert result.aggregations["in"] == {(1,): READS}
    assert result.aggregations["out"] == {(1,): READS}


def test_the_command_and_its_status(machine: Machine) -> None:
    result = machine.run(f"kinst::vfs_read:0 {OURS} {COUNT}", "reads 7; exit 3")
    assert result.status == 3
    assert result.aggregations[""] == {("0",): 7}


def boot_of(machine: Machine) -> bytes:
    """Return the guest's kernel messages during boot, with their times."""
    return machine.run("BEGIN { }", "dmesg | head -n 150").output


def test_a_second_guest_goes_on_from_where_the_first_had_booted(
    machine: Machine, reads: Path
) -> None:
    with kinst.boot(copies=[reads]) as second, kinst.boot(copies=[reads], cold=True) as cold:
        assert boot_of(second) == boot_of(machine) != boot_of(cold)


def test_the_text_is_as_before(reads: Path) -> None:
    """Run the command as a user types it."""
    program = f"kinst::vfs_read: {OURS} {COUNT}"
    done = command.kinst("-v", "-n", program, "-c", f"reads {READS}", copy=[reads]).good()
    assert "kinst: kernel text is as before (" in done.err
    assert command.counts(done.out)["0",] == READS


def test_a_guest_that_runs_already_is_traced(
    prepared: Prepared, reads: Path, tmp_path: Path
) -> None:
    """--attach counts exactly, and the guest runs on."""
    begun = 'tick-100ms { printf("begun\\n"); }'
    program = f"kinst::vfs_read:0 {OURS} {{ @[execname] = count(); }} {begun}"
    with attach_guest("pc", prepared, reads, tmp_path) as vm:
        where = ("--attach", str(vm.pid), "--kernel", str(vm.debug))
        run = Running(*where, "-q", "-n", program, boots=False)
        run.until(lambda r: "begun" in r.out)
        vm.run(f"reads {READS}")
        run.stop()
        assert counts(run.result().good().out)["reads",] == READS
        assert f"reads {READS} ns" in vm.run(f"reads {READS}")
