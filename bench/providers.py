"""Measure what a hit of a syscall or sdt probe costs, beside BPF, perf and ftrace on that event.

    .venv/bin/python bench/providers.py [--boots N] [--takes N] [--check]

A guest program makes one-byte read(2) calls of /dev/zero, or calls of sched_yield(2) beside another
thread that does so on the same CPU, for which the kernel switches threads twice. Both threads have
one address space: after a switch to another one, QEMU fills its table of translated addresses anew,
and what a probe costs drowns in the scatter of that. Each take is a few hundred short rounds, and
its figure is the time that a tenth of them do not exceed. All takes of a boot are in one guest, in
alternation, and the fastest take of each way to probe counts: other processes of the host can only
make a take slower. The cost of a hit is (ns of a call in the fastest traced take - ns of a call in
the fastest untraced take) / hits in a call. The table has the median over boots, with the range.

Rounds are not paired with getuid(2), as bench/hit_cost.py does: some of these tools make every
system call slower.

The peers:
- BPF is the program that bpftrace compiles from `tracepoint:...  { @ = count(); }`, without
  bpftrace (tests/programs/bpfcount.c); "raw" is that of `rawtracepoint:...`.
- perf is the counter that `perf stat -a -e EVENT` opens on each CPU.
- ftrace is the event in the trace buffer, which no reader empties, or with a hist trigger.

The hits of each take are counted. If hits are missing the benchmark fails, since a probe that
misses hits would seem cheap. The exit status is 1 if something failed, or, with --check, if a
figure misses its bar.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from bench.budget import Budget, go_first
from bench.guest import Guest, compile_programs
from bench.hit_tools import TRACING, rounds_of, total
from kinst import KinstError

READ, SWITCH = "read", "switch"
CALLS, ROUNDS = 200, 200
UNLIMITED = "/proc/sys/kernel/sched_rt_runtime_us"  # CPU time of real-time threads
HITS = {READ: 1, SWITCH: 2}
COMMANDS = {READ: f"rounds ask {CALLS} {ROUNDS}", SWITCH: f"rounds ask {CALLS} {ROUNDS} switch"}
ENTRY, RETURN = "kinst syscall::read:entry", "kinst syscall::read:return"
ALL_ENTRIES, ALL_RETURNS = "kinst syscall:::entry", "kinst syscall:::return"
SWITCHES, SWITCHES_BY = "kinst sdt:::sched_switch", "kinst sdt:::sched_switch, @[args[2]->pid]"
PROGRAMS = {
    ENTRY: "syscall::read:entry { @ = count(); }",
    RETURN: "syscall::read:return { @ = count(); }",
    ALL_ENTRIES: "syscall:::entry { @ = count(); }",
    ALL_RETURNS: "syscall:::return { @ = count(); }",
    SWITCHES: "sdt:::sched_switch { @ = count(); }",
    SWITCHES_BY: "sdt:::sched_switch { @[args[2]->pid] = count(); }",
}
# (kinst's mode, the peers that it must be five times cheaper than).
PEERS = {
    ENTRY: ("BPF sys_enter_read", "perf sys_enter_read"),
    RETURN: ("BPF sys_exit_read", "perf sys_exit_read"),
    SWITCHES: ("BPF sched_switch", "perf sched_switch"),
}
TIMES = 5.0
# All system calls must cost at most so many times what the probe of one of them costs.
ONE_PLACE = 1.5


@dataclass(frozen=True, slots=True)
class Probing:
    """A way to probe that is measured.

    Attributes:
        name: name in the table.
        call: READ or SWITCH.
        take: runs a command of the guest while it is probed; returns the command's output and the
            number of hits.
    """

    name: str
    call: str
    take: Callable[[str], tuple[str, int]]


def _kinst(guest: Guest, name: str) -> Probing:
    program = guest.compile(PROGRAMS[name])

    def take(command: str) -> tuple[str, int]:
        ran = guest.trace(program, command)
        return ran.output, total(ran)

    return Probing(name, SWITCH if "sdt" in name else READ, take)


def _counted(guest: Guest, name: str, call: str, event: str) -> Probing:
    """Return a way to probe by bpfcount."""

    def take(command: str) -> tuple[str, int]:
        text = guest.run(f"bpfcount {event} -- {command}")
        found = re.search(r"^bpfcount (\d+)$", text, re.M)
        if found is None:
            raise KinstError(f"bpfcount {event}: {text.strip()}")
        return text, int(found[1])

    return Probing(name, call, take)


def _ftrace(guest: Guest, name: str, call: str, event: str, *, histogram: bool) -> Probing:
    """Return a way to probe by the kernel's own event: in its buffer, or in a histogram."""
    folder = f"{TRACING}/events/{event.replace(':', '/')}"
    trigger = "hist:keys=common_pid"
    on = f"echo '{trigger}' >{folder}/trigger" if histogram else f"echo 1 >{folder}/enable"
    off = f"echo '!{trigger}' >{folder}/trigger" if histogram else f"echo 0 >{folder}/enable"
    hits = f"sed -n 's/.*Hits: /hits /p' {folder}/hist" if histogram else (
        f"cat {TRACING}/per_cpu/cpu*/stats | sed -n 's/^entries: /hits /p; s/^overrun: /hits /p'"
    )  # fmt: skip

    def take(command: str) -> tuple[str, int]:
        text = guest.run(
            f"echo >{TRACING}/trace; echo 1 >{TRACING}/tracing_on; {on}; {command}; {hits}; {off};"
            f"echo >{TRACING}/trace"
        )
        return text, sum(map(int, re.findall(r"^hits (\d+)$", text, re.M)))

    return Probing(name, call, take)


def probings(guest: Guest) -> list[Probing]:
    """Return all ways to probe, in the order of the table."""
    found = [_kinst(guest, name) for name in PROGRAMS if "sdt" not in name]
    for event in ("sys_enter_read", "sys_exit_read"):
        found.append(_counted(guest, f"BPF {event}", READ, f"tracepoint:syscalls:{event}"))
        found.append(_counted(guest, f"perf {event}", READ, f"perf:syscalls:{event}"))
    event = "syscalls:sys_enter_read"
    found += [
        _counted(guest, "BPF raw sys_enter, all calls", READ, "rawtracepoint:sys_enter"),
        _ftrace(guest, "ftrace sys_enter_read, buffer", READ, event, histogram=False),
        _ftrace(guest, "ftrace sys_enter_read, hist", READ, event, histogram=True),
    ]
    found += [_kinst(guest, name) for name in PROGRAMS if "sdt" in name]
    event = "sched:sched_switch"
    return [
        *found,
        _counted(guest, "BPF sched_switch", SWITCH, f"tracepoint:{event}"),
        _counted(guest, "BPF raw sched_switch", SWITCH, "rawtracepoint:sched_switch"),
        _counted(guest, "perf sched_switch", SWITCH, f"perf:{event}"),
        _ftrace(guest, "ftrace sched_switch, buffer", SWITCH, event, histogram=False),
        _ftrace(guest, "ftrace sched_switch, hist", SWITCH, event, histogram=True),
    ]


@dataclass(slots=True)
class Figures:
    """Nanoseconds in the fastest takes of each boot.

    Attributes:
        untraced: of a call, by READ or SWITCH.
        hits: of a hit, by the name of the way to probe.
    """

    untraced: dict[str, list[float]]
    hits: dict[str, list[float]]

    def add(self, ways: Sequence[Probing], fastest: dict[str, float]) -> None:
        """Add a boot.

        Args:
            ways: the ways to probe.
            fastest: ns of a call in the fastest take of each call untraced, and of each way to
                probe that could be measured, by its name.
        """
        for call, ns in self.untraced.items():
            ns.append(fastest[call])
        for one in ways:
            if one.name in fastest:
                cost = (fastest[one.name] - fastest[one.call]) / HITS[one.call]
                self.hits.setdefault(one.name, []).append(cost)

    def of(self, name: str) -> float:
        return statistics.median(self.hits[name])


def measure(boots: int, takes: int, budget: Budget) -> Figures:
    """Boot guests and measure all ways to probe. Raises KinstError."""
    figures = Figures({READ: [], SWITCH: []}, {})
    with tempfile.TemporaryDirectory() as folder:
        copies = compile_programs(("rounds", "bpfcount"), Path(folder))
        for boot in range(boots):
            guest = Guest(copies, cold=True)
            try:
                guest.run(f"rounds serve; echo -1 >{UNLIMITED}")
                every = probings(guest)
                fastest: dict[str, float] = {}
                for take in range(takes):
                    budget.say(f"boot {boot + 1} of {boots}, take {take + 1} of {takes}")
                    for one in every:
                        _take(guest, one, fastest, budget)
                figures.add(every, fastest)
            finally:
                guest.close()
    return figures


def quick(text: str) -> float:
    """Return the nanoseconds of a call that a tenth of the rounds do not exceed."""
    return statistics.quantiles(rounds_of(text), n=10)[0]


def _take(guest: Guest, one: Probing, fastest: dict[str, float], budget: Budget) -> None:
    """Run an untraced and a traced take.

    Args:
        fastest: ns of a call in the fastest takes so far, as in Figures.add(); is changed.
    """
    hits, command = HITS[one.call], COMMANDS[one.call]
    try:
        untraced = quick(guest.run(command))
        fastest[one.call] = min(untraced, fastest.get(one.call, untraced))
        text, counted = one.take(command)
        if counted < hits * CALLS * ROUNDS:
            raise KinstError(f"{counted} hits were counted, of {hits * CALLS * ROUNDS}")
        traced = quick(text)
        fastest[one.name] = min(traced, fastest.get(one.name, traced))
    except KinstError as error:
        budget.failed(f"{one.name}: {error}")


def verdicts(figures: Figures) -> list[tuple[str, bool]]:
    """Return texts that compare kinst with its peers, each with whether it meets its bar."""
    found = []
    for name, peers in PEERS.items():
        for peer in peers:
            if name in figures.hits and peer in figures.hits:
                times = figures.of(peer) / max(figures.of(name), 0.1)
                text = f"{name}: {times:.1f} times cheaper than {peer}, {TIMES:g} wanted"
                found.append((text, times >= TIMES))
    for one, every in ((ENTRY, ALL_ENTRIES), (RETURN, ALL_RETURNS)):
        if one in figures.hits and every in figures.hits:
            times = figures.of(every) / max(figures.of(one), 0.1)
            text = f"{every}: {times:.2f} times {one}, at most {ONE_PLACE:g} wanted"
            found.append((text, times <= ONE_PLACE))
    return found


def show(figures: Figures) -> None:
    table = Table(title="ns per hit")
    for column in ("", "ns", "boots"):
        table.add_column(column, justify="right" if column else "left")
    for call, each in figures.untraced.items():
        table.add_row(f"untraced, a call ({call})", f"{statistics.median(each):,.0f}", "")
    for name, each in figures.hits.items():
        table.add_row(
            name, f"{statistics.median(each):,.1f}", f"{min(each):,.0f} to {max(each):,.0f}"
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a hit of a syscall or sdt probe costs.")
    parser.add_argument("--boots", type=int, default=3, help="number of guests (3)")
    parser.add_argument("--takes", type=int, default=5, help="takes in each guest (5)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    options = parser.parse_args(argv)
    budget, priority = Budget(3600), go_first()
    try:
        figures = measure(options.boots, options.takes, budget)
    except KinstError as error:
        print(f"providers: {error}", file=sys.stderr)
        return 1
    show(figures)
    wanted = verdicts(figures)
    for text, met in wanted:
        print(f"{'met   ' if met else 'MISSED'} {text}")
    for text in budget.failures:
        print(f"not measured: {text}")
    print(f"{budget.used():.0f} s; {priority}{options.boots} boots of {options.takes} takes")
    missed = options.check and not all(met for _, met in wanted)
    return 1 if budget.failures or missed else 0


if __name__ == "__main__":
    sys.exit(main())
