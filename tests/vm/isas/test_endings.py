"""Contract of an instruction set: records, drops, and how a trace ends."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.vm.command import Running, marked
from tests.vm.isa_guest import Guest

pytestmark = pytest.mark.vm

RECORDS = 100_000
DROPS = re.compile(r"^dtrace: (\d+) drops? on (?:CPU \d+|the host)$", re.M)


SMALL = ("-x", "bufsize=1k", "-x", "switchrate=1s")


@pytest.mark.parametrize("buffers", [(), SMALL])
def test_a_line_for_each_hit_or_a_drop_that_is_told(guest: Guest, buffers: tuple[str, ...]) -> None:
    """The buffers cannot hold the records between two reads of them, so there must be drops."""
    lines, dropped = lines_and_drops(guest, RECORDS, *buffers)
    assert lines + dropped == RECORDS
    assert dropped or not buffers


@pytest.mark.slow
def test_a_million_lines(guest: Guest) -> None:
    """The default buffers, with the guest at its full speed."""
    lines, dropped = lines_and_drops(guest, 1_000_000)
    assert lines + dropped == 1_000_000
    assert lines > 100_000  # kinst keeps up with most of them at least


@pytest.mark.parametrize("guest", ["arm64"], indirect=True)
def test_buffers_larger_than_a_branch_reaches(guest: Guest) -> None:
    """256 MB of scratch beside an image that lies anywhere: only its code must be near."""
    lines, dropped = lines_and_drops(guest, 1000, "-x", "bufsize=64m", "-x", "plant=jump")
    assert (lines, dropped) == (1000, 0)


def lines_and_drops(guest: Guest, hits: int, *options: str) -> tuple[int, int]:
    """Return how many lines arrived, whole and in order of time, and how many drops were
    reported."""
    done = guest.trace(
        "-q", *options, "-n",
        'fbt::vfs_read:entry /execname == "reads" && arg2 == 1/'
        '{ printf("%d %d %x %x\\n", cpu, timestamp, arg0, arg1); }',
        "-c", f"reads {hits}", copy=[guest.reads()],
    )  # fmt: skip
    rows = [line.split() for line in done.out.splitlines() if line]
    assert {len(row) for row in rows} == {4}
    # One process reads one file, a kernel address, into a buffer of its own.
    assert len({(row[2], row[3]) for row in rows}) == 1
    assert int(rows[0][2], 16) >> 63 == 1 and 0 < int(rows[0][3], 16) < 1 << 48
    for cpu in {row[0] for row in rows}:
        times = [int(row[1]) for row in rows if row[0] == cpu]
        assert times == sorted(times)
    return len(rows), sum(map(int, DROPS.findall(done.err)))


def forever(guest: Guest) -> Running:
    """Start a trace of a command that would run for hours; return once it counts."""
    run = Running(
        f"--vm={guest.isa}", "-v", "-n", "kinst::vfs_read:, kinst::ksys_read: { @ = count(); }",
        "-n", "fbt::vfs_read:entry { n++; }",
        "-n", 'tick-100ms /n > 20000/ { printf("ticks"); } END { printf("the end"); }',
        "-c", "reads 100000000000", copy=[guest.reads()],
    )  # fmt: skip
    run.until(lambda r: r.out.count("ticks") > 5)
    return run


def test_ctrl_c_puts_everything_back(guest: Guest) -> None:
    run = forever(guest)
    run.stop(signal.SIGINT)
    done = run.result().good()
    assert int(done.out.split()[-1]) > 10_000
    assert done.out.count("the end") == 1
    assert "kinst: kernel text is as before (" in done.err


def test_kill_9_leaves_no_process(guest: Guest) -> None:
    run = forever(guest)
    assert len(marked(run.mark)) == 1
    run.stop(signal.SIGKILL)
    run.process.wait(60)
    end = time.monotonic() + 60
    while marked(run.mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert run.result().status == -signal.SIGKILL
