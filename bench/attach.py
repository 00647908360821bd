"""Measure what tracing a running QEMU costs (--attach), beside a guest that kinst has booted
(--vm).

    .venv/bin/python bench/attach.py [--vm ISA] [--passes N] [--only hits|times|kills]

Hits. Two guests run the same kernel on the same machine and CPU model: kinst has booted one of
them, a plain QEMU command line the other. In both guests the kernel, and all memory that kinst
plants, is at the same addresses (nokaslr). With other addresses, chance decides how many of them
share a slot of QEMU's tables of translated code, which can cost more than a hit by jump. In both
guests a program reads one byte of /dev/zero in short rounds, alternately with and without probes at
the first instructions of three functions that each read calls; the shortest round counts. Every hit
is counted, and a missing hit makes the benchmark fail.

Times. The kinst command is started anew for each measurement, on the plain guest, in which a
program reads all the time. "First record" is the time from the command's start until its first line
arrives. QEMU's monitor reports when the guest stops and resumes, which gives the time for which the
guest was stopped.

Kills. kinst is killed at a random moment of attaching, planting, tracing or unplanting, and the
guardian restores the guest. The figure is the longest time for which the guest was stopped after
the kill.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kinst
from bench.guest import Guest, compile_programs
from bench.hit_tools import Effort, rounds_of
from bench.plain_guest import PlainGuest
from kinst import KinstError
from kinst.events import Batch

SITE = "kinst::vfs_read:0"
SITES = ("kinst::ksys_read:0", SITE, "kinst::read_zero:0")  # each is hit once by each read
COUNT = f'{", ".join(SITES)} /execname == "rounds"/ {{ @ = count(); }}'
PLANTED = 'tick-50ms { printf("planted"); }'  # its first firing follows the planting
SAME_PLACES = "nokaslr"
QUICK, MIDDLE = Effort(1000, 250), Effort(1000, 60)
WAYS = {"jump": QUICK, "trap": MIDDLE}
ONE = f'{SITE} {{ printf("%s\\n", execname); }}'
ALL = 'fbt:::entry { @ = count(); } tick-50ms { printf("planted\\n"); }'
EVERY = "kinst::vfs_read: { @ = count(); }"
TIMES = {"one probe": ONE, "fbt:::entry": ALL}
KILLS = 30
COMMAND = Path(sys.executable).with_name("kinst")


def own_rounds(guest: Guest, program: kinst.Program, effort: Effort) -> tuple[list[float], int]:
    """Return the nanoseconds of a call in each round, and the number of counted hits, in the guest
    that kinst has booted."""
    ran = guest.trace(program, effort.alone)
    return rounds_of(ran.output), _count(ran.aggregations)


def attached_rounds(
    guest: PlainGuest, machine: kinst.Machine, program: kinst.Program, effort: Effort
) -> tuple[list[float], int]:
    """Return the nanoseconds of a call in each round, and the number of counted hits, in the
    attached guest, whose command starts after the probes are planted."""
    output = ""

    def work() -> None:
        nonlocal output
        output = guest.run(effort.alone)
        trace.stop()

    with machine.trace(program) as trace:
        worker = None
        for event in trace.events():
            if worker is None and isinstance(event, Batch):
                worker = threading.Thread(target=work)
                worker.start()
        found = trace.aggregations()
    if worker is None:
        raise KinstError("the trace ended before it began")
    worker.join()
    return rounds_of(output), _count(found)


def _count(tables: dict[str, kinst.Table]) -> int:
    count = tables[""].get((), 0)
    assert isinstance(count, int)
    return count


def measure_hits(isa: str, passes: int) -> bool:
    """Print what a hit costs in both guests, and return whether it costs at most 1.3 times as much
    in the attached one."""
    with tempfile.TemporaryDirectory() as folder:
        copies = compile_programs(["rounds"], Path(folder), isa)
        own = Guest(copies, isa, SAME_PLACES)
        try:
            with (
                PlainGuest(copies, isa, SAME_PLACES) as plain,
                kinst.attach(machine=plain.pid, kernel=plain.debug) as other,
            ):
                return _compared(own, plain, other, passes)
        finally:
            own.close()


def _compared(own: Guest, plain: PlainGuest, other: kinst.Machine, passes: int) -> bool:
    options: dict[str, int | str] = {"aggsize": 1 << 18, "bufsize": 1 << 16}
    programs = {
        way: (
            own.compile(f"{COUNT} {PLANTED}", way),
            other.compile(f"{COUNT} {PLANTED}", {**options, "plant": way}),
        )
        for way in WAYS
    }
    least: dict[str, list[float]] = {}

    def took(name: str, rounds: list[float], hits: int, wanted: int) -> None:
        if hits != wanted:
            raise KinstError(f"{name}: {hits} hits were counted, and there were {wanted}")
        least.setdefault(name, []).append(min(rounds))

    for _ in range(passes):
        took("own, untraced", rounds_of(own.run(QUICK.alone)), 0, 0)
        took("attached, untraced", rounds_of(plain.run(QUICK.alone)), 0, 0)
        for way, effort in WAYS.items():
            mine, others = programs[way]
            hits = len(SITES) * effort.total
            took(f"own, {way}", *own_rounds(own, mine, effort), hits)
            took(f"attached, {way}", *attached_rounds(plain, other, others, effort), hits)
    met = True
    for way in WAYS:
        cost = {
            name: (min(least[f"{name}, {way}"]) - min(least[f"{name}, untraced"])) / len(SITES)
            for name in ("own", "attached")
        }
        ratio = cost["attached"] / cost["own"]
        met &= ratio <= 1.3
        print(
            f"{way}: {cost['own']:.0f} ns a hit in kinst's own guest, {cost['attached']:.0f} ns"
            f" attached: {ratio:.2f} times (untraced: {min(least['own, untraced']):.0f} and"
            f" {min(least['attached, untraced']):.0f} ns a call)"
        )
    return met


def measure_times(isa: str, runs: int) -> None:
    """Print how long attaching takes, and for how long it stops the guest."""
    with tempfile.TemporaryDirectory() as folder:
        copies = compile_programs(["rounds"], Path(folder), isa)
        with PlainGuest(copies, isa) as plain:
            plain.run("(while true; do rounds 1000 1; usleep 2000; done) >/dev/null 2>&1 &")
            for name, program in TIMES.items():
                first, stood, longest = [], [], []
                for _ in range(runs):
                    plain.stops.take()
                    first.append(_first_record(plain, program))
                    time.sleep(0.2)  # until QEMU's events have arrived
                    stops = [end - start for start, end in plain.stops.take()]
                    stood.append(sum(stops))
                    longest.append(max(stops))
                print(
                    f"{name}: first record after {_spread(first)} s; the guest stood still for"
                    f" {_spread(stood, 1000)} ms in all, {_spread(longest, 1000)} at once"
                )


def measure_kills(isa: str, kills: int) -> None:
    """Print for how long the guest is stopped after kinst is killed at random moments of a
    trace."""
    chance, after = random.Random(isa), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        copies = compile_programs(["rounds"], Path(folder), isa)
        with PlainGuest(copies, isa) as plain:
            plain.run("(while true; do rounds 100 1; usleep 20000; done) >/dev/null 2>&1 &")
            whole = _first_record(plain, ONE)
            for number in range(kills):
                way = ("auto", "trap", "stop")[number % 3]
                forced = [] if way == "auto" else ["-x", f"plant={way}"]
                command = [*_command(plain), *forced, "-o", "/dev/null", "-qn", EVERY]
                child = subprocess.Popen(command)
                if chance.random() < 0.3:  # during unplanting
                    time.sleep(1.5 * whole)
                    child.terminate()
                    time.sleep(chance.uniform(0.0, 0.2) * whole)
                else:
                    time.sleep(chance.uniform(0.4, 1.5) * whole)
                plain.stops.take()
                killed = time.time()
                child.kill()
                child.wait()
                _wait_undone(plain)
                ends = [end - max(start, killed) for start, end in plain.stops.take()]
                after.append(max(ends, default=0.0))
                if _count_alive(plain) == 0:
                    raise KinstError("the guest does not go on")
    print(
        f"{kills} kills: then the guest stood still for {_spread(after, 1000)} ms at once at most"
    )


def _count_alive(plain: PlainGuest) -> int:
    """Return how many rounds the guest runs on request, which shows that it still works."""
    return len(rounds_of(plain.run("rounds 10 3")))


def _wait_undone(plain: PlainGuest) -> None:
    """Wait until no kinst process uses the guest, and QEMU's events have arrived."""
    deadline = time.monotonic() + 60.0
    words = ("--attach", str(plain.pid))
    while time.monotonic() < deadline:
        time.sleep(0.1)
        lines = (path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdecimal())
        if not any(all(word in _words(line) for word in words) for line in lines):
            return
    raise KinstError("a guardian does not end")


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").split("\0")
    except OSError:
        return []


def _command(plain: PlainGuest) -> list[str]:
    return [str(COMMAND), "--attach", str(plain.pid), "--kernel", str(plain.debug)]


def _first_record(plain: PlainGuest, program: str) -> float:
    started = time.monotonic()
    with subprocess.Popen([*_command(plain), "-qn", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        took = time.monotonic() - started
        child.terminate()
        child.stdout.read()
    if not line.strip():
        raise KinstError("kinst has printed no record")
    return took


def _spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Return the least, the median and the greatest value as text."""
    low, middle, high = (f(values) * scale for f in (min, statistics.median, max))
    return f"{low:.3g} to {high:.3g} (median {middle:.3g})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What tracing a running QEMU costs.")
    parser.add_argument("--vm", default="amd64", help="the ISA of the guests (amd64)")
    parser.add_argument("--passes", type=int, default=5, help="how often all is measured (5)")
    parser.add_argument("--only", choices=("hits", "times", "kills"), help="one part")
    options = parser.parse_args(argv)
    load = os.getloadavg()
    try:
        met = options.only not in (None, "hits") or measure_hits(options.vm, options.passes)
        if options.only in (None, "times"):
            measure_times(options.vm, options.passes)
        if options.only in (None, "kills"):
            measure_kills(options.vm, KILLS)
    except KinstError as error:
        print(f"attach: {error}", file=sys.stderr)
        return 1
    print(f"load: {load[0]:.1f} before, {os.getloadavg()[0]:.1f} after")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
