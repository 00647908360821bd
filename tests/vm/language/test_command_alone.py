"""-c traces the command and the kernel, not kinst's own processes in the guest.

A program is counted from its execve to its exit, and no process of kinst is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kinst as library
from kinst.core.machine import MachineEvent
from kinst.machines.vm.machine import Vm
from kinst.session.command_life import CommandLife
from tests.vm.command import counts, kinst
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

BY_NAME = "kinst::ksys_read:0 { @[execname] = count(); }"
READS = 700


@pytest.mark.parametrize("kernel", ["", pytest.param("7.3", marks=pytest.mark.slow)])
def test_reads_of_a_program_are_all_reads(kernel: str, reads: Path) -> None:
    chosen = ("--kernel", kernel) if kernel else ()
    done = kinst(*chosen, "-qn", BY_NAME, "-c", f"reads {READS}", copy=[reads]).good()
    assert counts(done.out) == {("reads",): READS}


def test_kinst_s_own_processes_are_there_on_request(reads: Path) -> None:
    done = kinst("-x", "only=all", "-qn", BY_NAME, "-c", f"reads {READS}", copy=[reads]).good()
    found = counts(done.out)
    assert found.pop(("reads",)) == READS
    assert found[("init",)] > 0


def test_without_a_predicate_every_instruction_counts_the_command_alone(reads: Path) -> None:
    """Instructions of a function are counted by one counter for each block."""
    program = "kinst::ksys_read: { @[probename] = count(); }"
    done = kinst("-qn", program, "-c", f"reads {READS}; reads {READS}", copy=[reads]).good()
    found = counts(done.out)
    assert found[("0",)] == 2 * READS
    assert max(found.values()) == 2 * READS


@pytest.mark.parametrize("options", [(), ("-x", "only=all")])
def test_page_faults_are_those_that_the_kernel_counts(options: tuple[str, ...]) -> None:
    """The kernel's counter of the process (min_flt) grows by one for each fault that is traced.

    At the first traced fault it is not 0: the process was there before the probes were planted.
    """
    program = """
        int n; int first; int last;
        fbt::handle_mm_fault:entry /pid == $target && !n/ { first = curthread->min_flt; }
        fbt::handle_mm_fault:entry /pid == $target/ { n++; last = curthread->min_flt; }
        END { printf("%d %d %d", n, first, last); }
    """
    done = kinst(*options, "-qn", program, "-c", "cat /proc/version").good()
    traced, first, last = map(int, done.out.split()[-3:])
    assert traced > 20 and first > 0
    assert traced - 1 == last - first


@pytest.mark.parametrize(
    ("function", "found"),
    [
        # The held process becomes the command's shell, which makes a process for the program.
        ("__x64_sys_execve", {("sh",): 2}),
        ("do_exit", {("reads",): 1, ("sh",): 1}),
        # The last function that a process executes.
        ("do_task_dead", {("reads",): 1, ("sh",): 1}),
    ],
)
def test_from_the_first_system_call_to_the_exit(
    reads: Path, function: str, found: dict[tuple[str, ...], int]
) -> None:
    program = (
        f"fbt::{function}:entry /pid == $target || ppid == $target/ {{ @[execname] = count(); }}"
    )
    done = kinst("-qn", program, "-c", "reads 5; exit 9", copy=[reads])
    assert (done.status, counts(done.out)) == (9, found), done


@pytest.mark.parametrize(
    ("command", "status"),
    [(f"leaders exit {READS}", 5), (f"leaders exec {READS}", 0)],
)
def test_a_process_that_goes_on_without_its_first_thread(
    reads: Path, guest_program: Callable[[str], Path], command: str, status: int
) -> None:
    copies = [reads, guest_program("leaders")]
    program = 'kinst::ksys_read:0 /execname != "init"/ { @ = count(); }'
    done = kinst("-qn", program, "-c", command, copy=copies)
    assert (done.status, counts(done.out)) == (status, {(): READS}), done


def test_only_the_command_and_its_descendants(reads: Path) -> None:
    """The kernel's threads run meanwhile, and are counted without only=command."""
    program = "fbt::finish_task_switch*:return { @[execname] = count(); }"
    command = f"sleep 1; reads {READS} & wait"
    all_of_them = kinst("-qn", program, "-c", command, copy=[reads]).good()
    own = ("-x", "only=command")
    descendants = kinst(*own, "-qn", program, "-c", command, copy=[reads]).good()
    kernel = {name for (name,) in counts(all_of_them.out)} - {"sh", "sleep", "reads"}
    assert kernel and not kernel & {"init", "stty", "rm", "cat"}
    assert {("sh",), ("sleep",)} <= counts(descendants.out).keys()
    assert {name for (name,) in counts(descendants.out)} <= {"sh", "exe", "sleep", "reads"}


def test_only_the_command_needs_one() -> None:
    done = kinst("-x", "only=command", "-qn", BY_NAME)
    assert done.status == 1
    assert "-x only=command needs a command" in done.err


def test_the_process_that_passes_output_on() -> None:
    """Programs of the host write into a pipe, which a process of kinst empties meanwhile."""
    arguments = ("--root", "/", "-qn", BY_NAME, "-c", "echo 1; sleep 0.2; echo 2")
    done = kinst(*arguments).good()
    assert done.guest == "1\n2\n"
    found = counts(done.out)
    assert ("sh",) in found and not {("cat",), ("init",)} & found.keys()
    assert ("cat",) in counts(kinst("-x", "only=all", *arguments).good().out)


@pytest.mark.full
def test_reads_on_each_isa(guest: Guest) -> None:
    found = counts(guest.trace("-qn", BY_NAME, "-c", f"reads {READS}", copy=[guest.reads()]).out)
    assert found == {("reads",): READS}


def test_the_start_of_a_command_discards_no_translated_code(
    reads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU counts how often it has discarded all translations, as it does after a breakpoint."""
    begin, discarded = CommandLife.begin, []

    def flushes(vm: Vm) -> int:
        said = vm.qemu.monitor.execute("human-monitor-command", {"command-line": "info jit"})
        return int(said.partition("TB flush count")[2].split()[0])

    def counted(life: CommandLife, resume: Callable[[], None]) -> MachineEvent | None:
        target = life._target
        assert isinstance(target, Vm)
        before = flushes(target)
        event = begin(life, resume)
        discarded.append(flushes(target) - before)
        return event

    monkeypatch.setattr(CommandLife, "begin", counted)
    with library.boot(copies=[reads]) as machine:
        for _ in range(3):
            result = machine.run(BY_NAME, f"reads {READS}")
            (table,) = result.aggregations.values()
            assert dict(table.aggregation.rows) == {("reads",): READS}
    assert discarded == [0, 0, 0]
