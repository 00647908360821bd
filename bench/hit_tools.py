"""The tools that bench/hit_cost.py compares, and readers of their output."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.guest import Guest, Ran
from kinst import KinstError, Program

TRACING = "/sys/kernel/tracing"
OPTIMIZATION = "/proc/sys/debug/kprobes-optimization"
UNTRACED_ROUNDS = 400
_NOT_COUNTED = 2  # number of first passes that do not count, if there are several passes
_SET = f"test -e {OPTIMIZATION} && echo {{}} >{OPTIMIZATION}\n"


@dataclass(frozen=True, slots=True)
class Effort:
    """The calls of the guest's program in one take.

    Attributes:
        calls: calls in a round.
        rounds: rounds in a pass.
        call: the system call: "" for read(2), or "getppid".
        times: number of passes, with a pause after each in which kinst empties its ring buffer; if
            there are several, the first two do not count.
    """

    calls: int
    rounds: int
    call: str = ""
    times: int = 1

    @property
    def command(self) -> str:
        """Shell command for paired rounds, which the serving process of tests/programs/rounds.c
        runs."""
        return "; usleep 100000; ".join([f"rounds ask {self._words} paired"] * self.times)

    @property
    def alone(self) -> str:
        """Shell command for unpaired rounds, in a process of its own."""
        return f"rounds {self._words}"

    @property
    def _words(self) -> str:
        return f"{self.calls} {self.rounds} {self.call}".strip()

    @property
    def total(self) -> int:
        return self.calls * self.rounds * self.times

    @property
    def bare(self) -> Effort:
        """Effort of the untraced take to compare with, which has as many calls in each round."""
        return Effort(self.calls, UNTRACED_ROUNDS, self.call)


@dataclass(frozen=True, slots=True)
class Paired:
    """Times of a take's paired rounds.

    Attributes:
        pace: nanoseconds of a getuid(2) in the quickest round.
        times: time of a call in multiples of getuid(2), the median of rounds; None if every round
            was disturbed.
    """

    pace: float
    times: float | None


def paired_of(text: str, effort: Effort) -> Paired:
    """Return the times in the output of tests/programs/rounds.c for paired rounds.

    Args:
        text: the output.
        effort: the effort whose command was run.

    Raises:
        KinstError: the output has no paired rounds.
    """
    lines = re.findall(r"^paired \d+ ns ([\d.]+) times (.*)$", text, re.M)
    if len(lines) != effort.times:
        raise KinstError(f"the guest printed no paired rounds: {text.strip()[:200]!r}")
    counted = lines[_NOT_COUNTED:] if effort.times > _NOT_COUNTED else lines
    words = (word for _, times in counted for word in times.split())
    rounds = [times for word in words if (times := float(word))]
    pace = min(float(pace) for pace, _ in counted)
    return Paired(pace, statistics.median(rounds) if rounds else None)


def rounds_of(text: str) -> list[float]:
    """Return the nanoseconds of a call in each unpaired round, from the output of
    tests/programs/rounds.c."""
    found = re.findall(r"^rounds \d+ ns (.*)$", text, re.M)
    if not found:
        raise KinstError(f"the guest printed no rounds: {text.strip()!r}")
    return [float(word) for line in found for word in line.split()]


def counts_of(ran: Ran) -> dict[str, int]:
    """Return the counts of a traced program's only aggregation, by key."""
    (table,) = ran.aggregations.values()
    return {str(key[0]) if key else "": n for key, n in table.items() if isinstance(n, int)}


@dataclass(frozen=True, slots=True)
class Kprobes:
    """kprobe events at offsets of a function.

    Attributes:
        guest: the guest in which they are set up.
        function: the function.
        offsets: offsets of the probed instructions.
        optimise: whether the kernel optimises the kprobes to jumps.
        buffer: whether events are written to the trace buffer.
        histogram: whether the first event has a hist trigger.
    """

    guest: Guest
    function: str
    offsets: tuple[int, ...]
    optimise: bool = False
    buffer: bool = False
    histogram: bool = False

    def script(self, work: str) -> str:
        """Return a shell script that sets up the events, prints the kernel's list of kprobes, runs
        a command and removes the events.

        Args:
            work: the command.
        """
        events = "".join(
            f"echo 'p:k{o} {self.function}+{o}' >>kprobe_events\n" for o in self.offsets
        )
        trigger = "hist:keys=common_pid"
        histogram = f"echo '{trigger}' >events/kprobes/k{self.offsets[0]}/trigger\n"
        remove = f"echo '!{trigger}' >events/kprobes/k{self.offsets[0]}/trigger\n"
        return (
            f"{_SET.format(int(self.optimise))}cd {TRACING}\n{events}"
            f"{histogram if self.histogram else ''}"
            f"echo {int(self.buffer)} >tracing_on\necho 1 >events/kprobes/enable\n"
            "usleep 200000\ncat /sys/kernel/debug/kprobes/list\n"
            f"{work}\ncat kprobe_profile | sed 's/^/profile /'\n"
            f"echo 0 >events/kprobes/enable\n{remove if self.histogram else ''}"
            "echo >kprobe_events\necho >trace\nusleep 200000\n"
        )

    def take(self, effort: Effort) -> tuple[Paired, int]:
        text = self.guest.run(self.script(effort.command))
        jumps = text.count("[OPTIMIZED]")
        if jumps != (len(self.offsets) if self.optimise else 0):
            raise KinstError(f"{jumps} kprobes were optimised: {text}")
        seen = re.findall(r"^profile\s+k\d+\s+(\d+)\s+(\d+)", text, re.M)
        return paired_of(text, effort), sum(int(hits) for hits, _ in seen)


@dataclass(frozen=True, slots=True)
class Bpf:
    """A BPF program that counts hits at offsets of a function."""

    guest: Guest
    function: str
    offsets: tuple[int, ...]
    optimise: bool = False

    def take(self, effort: Effort) -> tuple[Paired, int]:
        offsets = " ".join(map(str, self.offsets))
        text = self.guest.run(
            f"{_SET.format(int(self.optimise))}"
            f"bpfcount {self.function} {offsets} -- {effort.command}\nusleep 200000\n"
        )
        found = re.search(r"^bpfcount (\d+)$", text, re.M)
        if found is None:
            raise KinstError(f"no BPF program could count: {text.strip()}")
        return paired_of(text, effort), int(found[1])


@dataclass(frozen=True, slots=True)
class Kinst:
    """A D program that counts hits.

    Attributes:
        guest: the guest that it traces.
        program: the compiled program.
        count: returns the number of hits from the results.
    """

    guest: Guest
    program: Program
    count: Callable[[Ran], int]

    def take(self, effort: Effort) -> tuple[Paired, int]:
        ran = self.guest.trace(self.program, effort.command)
        if ran.lost:
            raise KinstError(f"records were lost: {ran.lost}")
        return paired_of(ran.output, effort), self.count(ran)


def total(ran: Ran) -> int:
    return sum(counts_of(ran).values())


def records(ran: Ran) -> int:
    return ran.records


def distribution(ran: Ran) -> int:
    """Return the number of values in a traced program's only aggregation, which is a
    distribution."""
    (table,) = ran.aggregations.values()
    return sum(
        bucket.count for value in table.values() if isinstance(value, tuple) for bucket in value
    )
