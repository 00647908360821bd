"""Endings of a trace: signals, exit(), the end of -c, a guest that panics.

After each, the counts are printed, the kernel's text is restored, and QEMU is gone
(Running.result()).
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.vm.command import Running, counts, kinst, marked

pytestmark = pytest.mark.vm

AS_BEFORE = "kinst: kernel text is as before ("


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_trace_in_order(read_function: str, reads: Path, number: int) -> None:
    """The guest's command would run for hours."""
    run = Running(
        "-v", "-n", f"kinst::{read_function}:0 {{ @[execname] = count(); n++; }}",
        "-n", 'tick-100ms /n > 20000/ { printf("ticks"); } END { printf("the end"); }',
        "-c", "reads 100000000000", copy=[reads],
    )  # fmt: skip
    run.until(lambda r: r.out.count("ticks") > 5)
    run.stop(number)
    done = run.result().good()
    assert counts(done.out)["reads",] > 10_000
    assert done.out.count("the end") == 1
    assert AS_BEFORE in done.err


def test_a_signal_while_the_guest_boots() -> None:
    """Before anything is planted there is nothing to print: kinst ends by the signal.

    On a busy host the trace may have begun before the signal comes, and then ends in order.
    """
    run = Running("-n", 'BEGIN { printf("begun"); } kinst::vfs_read:0 { @ = count(); }')
    run.until(lambda _: marked(run.mark))
    run.stop()
    done = run.result()
    assert "Traceback" not in done.err
    if "begun" in done.out:
        assert done.status == 0, done
        return
    assert done.status == -signal.SIGINT, done
    assert done.err.endswith("kinst: interrupted\n"), done


def test_exit_in_a_planted_clause(read_function: str, reads: Path) -> None:
    """The status is exit()'s; clauses that run later see that the trace is over."""
    done = kinst(
        "-v", "-n",
        f'kinst::{read_function}:0 /++n == 1000/ {{ exit(3); }} '
        f"kinst::{read_function}:5 {{ @ = count(); }} END {{ printf(\"n=%d\", n); }}",
        "-c", "reads 100000000", copy=[reads],
    )  # fmt: skip
    assert done.status == 3, done
    assert counts(done.out)[()] == 999
    assert re.search(r"n=1000$", done.out, re.M), done.out
    assert AS_BEFORE in done.err


def test_exit_in_begin_plants_nothing(read_function: str, reads: Path) -> None:
    done = kinst(
        "-n", f"BEGIN {{ exit(4); }} kinst::{read_function}:0 {{ @ = count(); }}",
        "-c", "reads 10", copy=[reads],
    )  # fmt: skip
    assert done.status == 4, done
    assert done.guest == ""


def test_the_trace_ends_with_the_command(reads: Path) -> None:
    """All output and all events arrive, and the command's exit status is kinst's."""
    done = kinst(
        "-n", 'BEGIN { printf("first"); } END { printf("last"); }',
        "-n", 'kinst::ksys_read:0 /execname == "reads"/ { @ = count(); }',
        "-c", "reads 1000; seq 20000; echo last; exit 7", copy=[reads],
    )  # fmt: skip
    assert done.status == 7, done
    words = done.guest.split()
    assert words[0] == "reads" and words[4:] == [*map(str, range(1, 20001)), "last"]
    assert counts(done.out)[()] == 1000
    assert done.out.index("first") < done.out.index("last")


def test_exit_counts_more_than_the_commands_status(read_function: str, reads: Path) -> None:
    """exit() in END, which fires when the command has ended, has the same effect."""
    done = kinst(
        "-n", f"kinst::{read_function}:0 {{ @ = count(); }} END {{ exit(0); }}",
        "-c", "reads 10; exit 7", copy=[reads],
    )  # fmt: skip
    assert done.status == 0, done
    assert counts(done.out)[()] == 10


def test_a_timeout_cuts_the_command_off(read_function: str, reads: Path) -> None:
    """The trace ends as with Ctrl-C; the status is that of timeout(1), so that scripts can
    tell."""
    done = kinst(
        "--timeout", "5",  # the guest's command begins within one, or more on a busy host
        "-n", f"kinst::{read_function}:0 {{ @ = count(); }} END {{ printf(\"the end\"); }}",
        "-c", "reads 100000000000", copy=[reads],
    )  # fmt: skip
    assert done.status == 124, done
    assert counts(done.out)[()] > 0 and "the end" in done.out


def test_a_panic_is_reported_with_the_console() -> None:
    """The report has the reason, the kernel's last messages, and the counts so far."""
    done = kinst(
        "-q", "-n", "kinst::ksys_write:0 { @[execname] = count(); }",
        "-c", "echo going; echo c > /proc/sysrq-trigger; sleep 1000",
    )  # fmt: skip
    assert done.status == 110, done
    lines = done.err.splitlines()
    assert "Kernel panic - not syncing: sysrq triggered crash" in lines[0]
    # The console's end: the stack down to the system call, and the last messages of the panic.
    assert len(lines) > 10 and all(re.match(r"\[ *\d+\.\d+\] ", line) for line in lines[1:])
    assert any("entry_SYSCALL_64" in line for line in lines), done.err
    assert "Traceback" not in done.err
    assert any(key and key[0] == "sh" for key in counts(done.out)), done.out


def test_a_guest_that_powers_off_is_reported() -> None:
    command = "poweroff -f; sleep 1000"
    done = kinst("-q", "-n", "kinst::ksys_write:0 { @ = count(); }", "-c", command)
    assert done.status == 1, done
    assert "shut down" in done.err and "Traceback" not in done.err


def test_qemu_killed_by_someone_is_reported(read_function: str, reads: Path) -> None:
    run = Running(
        "-q", "-n", f"kinst::{read_function}:0 {{ @ = count(); }} tick-100ms {{ trace(1); }}",
        "-c", "reads 100000000000", copy=[reads],
    )  # fmt: skip
    run.until(lambda r: r.out.count("1") > 3)
    (qemu,) = marked(run.mark)
    os.kill(qemu, signal.SIGKILL)
    done = run.result()
    assert done.status == 1, done
    assert "QEMU ended by signal 9" in done.err and "Traceback" not in done.err
