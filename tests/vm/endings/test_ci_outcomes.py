"""Exit statuses by which a CI job tells outcomes apart (docs/kinst.1, EXIT STATUS).

The guest's command fails, the guest oopses, warns, hangs or panics, or a trace drops records.
Nothing in Debian's kernels makes them oops or hang on demand, so getppid(2) of the booted guest is
overwritten before the trace begins, with kinst's own way of writing code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kinst.api import Machine, Trace
from kinst.cli import command
from tests.vm.command import kinst

pytestmark = pytest.mark.vm

FUNCTION = "__x64_sys_getppid"
LOAD_FROM_8 = bytes.fromhex("488b042508000000")  # mov rax, [8]
LOOP_FOR_EVER = bytes.fromhex("faebfe")  # cli; jmp to itself
LOOP_WITH_INTERRUPTS = bytes.fromhex("ebfe")
# The function, and the same code, of the others: msr daifset, #15; csrci sstatus, 2.
OTHERS = (
    ("arm64", "__arm64_sys_getppid", "010180d2200040f9", "df4f03d500000014"),
    ("riscv64", "__riscv_sys_getppid", "03358000", "737001106f000000"),
)
COUNT = "kinst::ksys_read:0 { @ = count(); }"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write these bytes over the start of getppid(2) in the guests of this process."""

    def breaks(code: bytes, name: str = FUNCTION) -> None:
        trace = Machine.trace

        def broken_trace(machine: Machine, *given: object, **named: object) -> Trace:
            made = trace(machine, *given, **named)  # type: ignore[arg-type]
            assert machine._started is not None
            traced = machine._started.machine
            (function,) = traced.kernel.find("", name)
            traced.target.write_text([(function.address, code)])
            return made

        monkeypatch.setattr(Machine, "trace", broken_trace)

    return breaks


def test_a_command_that_fails() -> None:
    assert kinst("-q", "-x", "fail=all", "-n", COUNT, "-c", "exit 7").status == 7


def test_a_guest_that_oopses(
    broken: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    """The shell of -c calls getppid(2) when it starts, and is killed; the guest runs on."""
    broken(LOAD_FROM_8)
    assert command.main(["-q", "-x", "fail=all", "-n", COUNT, "-c", ":"]) == 112
    said = capfd.readouterr().err
    assert "the traced kernel says: BUG: kernel NULL pointer dereference, address: " in said
    assert said.splitlines()[-1].startswith("kinst: exit status 112: the kernel ")


def test_a_guest_that_warns(guest_program: Callable[[str], Path]) -> None:
    words = ("-q", "-n", COUNT, "-c", "warn; exit 3")
    done = kinst(*words, "-x", "fail=warn,oops", copy=[guest_program("warn")])
    assert (done.status, done.guest) == (113, "warn ok\n"), done
    assert "kinst: exit status 113: the kernel warned (fail=warn)" in done.err


@pytest.mark.slow
def test_a_warning_that_fail_does_not_name(guest_program: Callable[[str], Path]) -> None:
    words = ("-q", "-n", COUNT, "-c", "warn; exit 3")
    done = kinst(*words, "-x", "fail=oops", copy=[guest_program("warn")])
    assert done.status == 3 and "the traced kernel says: WARNING: " in done.err, done


def test_a_guest_that_hangs(broken: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> None:
    broken(LOOP_FOR_EVER)
    words = ["-q", "--cpus", "1", "-n", COUNT, "-c", "sh -c :"]
    assert command.main(words) == 111
    assert "kinst: the guest is gone: the guest hangs with interrupts off: CPU 0 at " in (
        capfd.readouterr().err
    )


@pytest.mark.slow
def test_a_guest_that_makes_no_progress(
    broken: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Interrupts are taken, and the kernel's own watchdog complains."""
    broken(LOOP_WITH_INTERRUPTS)
    words = ["-q", "--cpus", "1", "--append", "watchdog_thresh=2", "-x", "fail=hang", "-n", COUNT]
    assert command.main([*words, "-c", "sh -c :"]) == 111
    said = capfd.readouterr().err
    assert "the traced kernel says: watchdog: BUG: soft lockup - CPU#0 stuck for " in said
    assert said.splitlines()[-1] == "kinst: exit status 111: the kernel hung (fail=hang)"


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "function", "load", "loop"), OTHERS)
def test_five_outcomes_of_other_isas(
    isa: str, function: str, load: str, loop: str, broken: Callable[..., None],
    capfd: pytest.CaptureFixture[str], program_for: Callable[[str, str], Path],
) -> None:  # fmt: skip
    guest, fail = f"--vm={isa}", ("-q", "-x", "fail=all")
    assert kinst(*fail, "-n", COUNT, "-c", "exit 7", guest).status == 7
    done = kinst(*fail, "-n", COUNT, "-c", "warn", guest, copy=[program_for("warn", isa)])
    assert (done.status, done.guest) == (113, "warn ok\n"), done
    program = 'kinst::ksys_read:0 /execname == "reads"/ { trace(timestamp); }'
    small = ("-b", "4k", "-x", "bufpolicy=switch", "-x", "switchrate=1s")
    done = kinst(*fail, *small, "-n", program, "-c", "reads 20000", guest,
                 copy=[program_for("reads", isa)])  # fmt: skip
    assert done.status == 115, done
    for code, status in ((load, 112), (loop, 111)):
        broken(bytes.fromhex(code), function)  # over the bytes written there before
        words = [*fail, guest, "--cpus", "1", "-n", COUNT, "-c", "sh -c :"]
        assert command.main(words) == status, capfd.readouterr().err


@pytest.mark.slow
def test_a_guest_that_panics_as_it_boots() -> None:
    """tests/vm/endings/test_endings.py has a guest that panics later."""
    done = kinst("-q", "-n", COUNT, "-c", "true", append="init=/nosuch rdinit=/nosuch")
    assert done.status == 110, done
    assert "Kernel panic - not syncing: " in done.err


def test_a_trace_that_drops(guest_program: Callable[[str], Path]) -> None:
    """The buffer is one page, and there are a hundred times as many records."""
    words = ("-q", "-b", "4k", "-x", "bufpolicy=switch", "-x", "switchrate=1s")
    program = 'kinst::ksys_read:0 /execname == "reads"/ { trace(timestamp); }'
    done = kinst(*words, "-x", "fail=drops", "-n", program, "-c", "reads 20000; exit 3",
                 copy=[guest_program("reads")])  # fmt: skip
    assert done.status == 115, done
    assert re.search(r" drops? on CPU ", done.err)
    last = done.err.splitlines()[-1]
    assert last.startswith("kinst: exit status 115: data was dropped") and "(fail=drops)" in last
