"""Measure what a hit costs by --live and by --vm, in one boot of one kernel.

    .venv/bin/python bench/live_cost.py [--boots N] [--only MODE] [--priority]

A QEMU guest has this machine's files. In the guest a process traces the guest's kernel by --live.
The same guest is also traced from outside, as --vm does it. The two ways take turns, and one
process of the guest makes all calls (bench/boots.py). So the same kernel at the same addresses
handles the same calls, and only the patches differ.

A mode's figure in a boot is the median of its takes, and it is printed for each boot; at the end
the medians over boots are printed side by side. --priority: once the guest is up, nothing else runs
on this machine's CPUs while the guest wants them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kinst
from bench.boots import Boots, Mode
from bench.budget import Budget, go_first
from bench.guest import Guest, compile_programs
from bench.hit_tools import Effort, Paired, counts_of, paired_of
from bench.short_sites import in_a_call
from tools.live_guest import PROCESSOR, set_up

READ_ONCE = Effort(200, 400)
ONE = "kinst::vfs_read:0 { @[probefunc] = count(); }"
# The cost of one hit depends on which pages share a slot of QEMU's tables. The sum over several
# functions depends on it less.
ON_THE_WAY = (
    "__x64_sys_read", "ksys_read", "__fdget_pos", "vfs_read", "rw_verify_area",
    "security_file_permission", "apparmor_file_permission",
)  # fmt: skip
SEVERAL = f"{', '.join(f'kinst::{name}:0' for name in ON_THE_WAY)} {{ @[probefunc] = count(); }}"
ALL = "kinst::vfs_read: { @[probename] = count(); }"
# For each mode: program, way to plant, effort. --vm plants no run that a word of memory points
# into. Traps leave such words, and kinst in the guest has the addresses of all sites in memory.
WHOLE = "all of vfs_read"
MODES: dict[str, tuple[str, str, Effort]] = {
    WHOLE: (ALL, "", READ_ONCE),
    "jumps of a read": (SEVERAL, "jump", READ_ONCE),
    "jump": (ONE, "jump", READ_ONCE),
    "trap": (ONE, "trap", READ_ONCE),
}
SECONDS = 900.0  # seconds that kinst may take to start in the guest, or to plan there
OPTIONS: dict[str, str | int] = {"aggsize": 1 << 18, "bufsize": 1 << 16}  # as bench/guest.py's
ASK, ANSWER = "/tmp/live_cost.ask", "/tmp/live_cost.answer"  # pipes in the guest


class LiveGuest(Guest):
    """A guest with the files of this host, in which kinst runs and traces the guest's kernel."""

    def __init__(self, folder: Path) -> None:
        """Boot the guest.

        Args:
            folder: folder of the host that has the guest's programs, and gets its scripts and logs.
        """
        self._seconds = SECONDS
        debug = kinst.kernel_files().debug
        lines, cache = set_up(Path(debug).name.removeprefix("vmlinux-"))
        self.machine = kinst.boot(
            root="/", writable=[folder, cache], memory="3g", cold=True,
            qemu_args=["-cpu", PROCESSOR], on_message=print,
        )  # fmt: skip
        self._start = folder / "start"
        self._begun = False
        inside = shlex.join([sys.executable, str(Path(__file__).resolve()), "--inside", str(debug)])
        self._start.write_text(
            f"{lines}mkfifo {ASK} {ANSWER}\n"
            f"setsid {inside} </dev/null >{folder}/inside.log 2>&1 &\ncat {ANSWER}\n"
        )

    def live(self, mode: str, effort: Effort) -> tuple[str, dict[str, int]]:
        """Trace a command by --live in the guest, and return its output and the counts by probe."""
        if not self._begun:
            self.run(f"sh {self._start}")
            self._begun = True
        words = shlex.quote(json.dumps([mode, effort.command]))
        said = self.run(f"echo {words} >{ASK}; cat {ANSWER}")
        output, counts, error = json.loads(said.splitlines()[-1])
        if error:
            raise kinst.KinstError(f"--live, {mode}: {error}")
        return output, counts


def serve(debug: str) -> None:
    """Run in the guest: trace each request that comes through the pipe, and write the answer, until
    the guest ends."""
    with kinst.live(debug=debug) as machine:
        programs: dict[str, kinst.Program] = {}
        Path(ANSWER).write_text("is up\n")
        while True:
            mode, command = json.loads(Path(ASK).read_text())
            try:
                text, plant, _ = MODES[mode]
                if mode not in programs:
                    programs[mode] = machine.compile(text, options_of(plant))
                found = machine.run(programs[mode], command)
                counts = {str(*key): n for key, n in found.aggregations[""].items()}
                lost = "; ".join(map(str, found.lost))
                answer: list[Any] = [found.output.decode(), counts, lost]
            except kinst.KinstError as error:
                answer = ["", {}, str(error)]
            Path(ANSWER).write_text(json.dumps(answer) + "\n")


def options_of(plant: str) -> dict[str, str | int]:
    return {**OPTIONS, **({"plant": plant} if plant else {})}


@dataclass(frozen=True, slots=True)
class ByVm:
    """A mode that is traced from outside of the guest (--vm).

    Attributes:
        guest: the guest.
        program: D program of the mode.
        each: number of hits in a call, by probe.
    """

    guest: LiveGuest
    program: kinst.Program
    each: Mapping[str, int]

    def take(self, effort: Effort) -> tuple[Paired, int]:
        ran = self.guest.trace(self.program, effort.command)
        if ran.lost:
            raise kinst.KinstError(f"records were lost: {ran.lost}")
        return paired_of(ran.output, effort), own_hits(counts_of(ran), self.each, effort)


@dataclass(frozen=True, slots=True)
class ByLive:
    """A mode that is traced from inside the guest (--live).

    Attributes:
        guest: the guest.
        mode: name of the mode.
        each: number of hits in a call, by probe.
    """

    guest: LiveGuest
    mode: str
    each: Mapping[str, int]

    def take(self, effort: Effort) -> tuple[Paired, int]:
        output, counts = self.guest.live(self.mode, effort)
        return paired_of(output, effort), own_hits(counts, self.each, effort)


def own_hits(counts: Mapping[str, int], each: Mapping[str, int], effort: Effort) -> int:
    """Return the number of hits that the measured calls made, without hits of kinst itself and of
    other programs.

    Args:
        counts: all hits, by probe.
        each: number of hits in a call, by probe.
        effort: the measured calls.
    """
    return sum(min(counts.get(key, 0), n * effort.total) for key, n in each.items())


def modes_of(guest: LiveGuest, only: str) -> list[list[Mode]]:
    """Return the modes in groups; the modes of a group alternate. For all instructions of vfs_read,
    --live comes after --vm has planted its runs."""
    vm, live = dict[str, Mode](), dict[str, Mode]()
    for mode, (text, plant, effort) in MODES.items():
        if only not in mode:
            continue
        program = guest.machine.compile(text, options_of(plant))
        own = guest.machine.compile(text.replace("{", '/execname == "rounds"/ {'), OPTIONS)
        each = in_a_call(guest, own, effort.call)
        hits = sum(each.values())
        vm[mode] = Mode(f"--vm {mode}", effort, hits, ByVm(guest, program, each).take)
        live[mode] = Mode(f"--live {mode}", effort, hits, ByLive(guest, mode, each).take)
    groups = [[vm.pop(WHOLE)], [live.pop(WHOLE)]] if WHOLE in vm else []
    return [*groups, *([vm[mode], live[mode]] for mode in vm)]


def show(boots: Boots, modes: Sequence[str], last: bool = False) -> None:
    """Print the nanoseconds that each way adds to a call.

    Args:
        boots: all boots.
        modes: names of the modes.
        last: print the medians over boots; otherwise the figures of the last boot.
    """
    for mode in modes:
        both = [boots.costs(f"--{way} {mode}") for way in ("vm", "live")]
        if not all(both):
            print(f"{mode}: no figure")
            continue
        hits = boots.modes[f"--vm {mode}"].hits
        vm, live = (hits * (statistics.median(each) if last else each[-1]) for each in both)
        print(f"{mode}: --vm {vm:.1f} ns a read, --live {live:.1f}: {live / vm:.2f} times;"
              f" {hits} hits", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boots", type=int, default=3)
    parser.add_argument("--only", default="", help="modes with this in their names")
    parser.add_argument("--priority", action="store_true", help="go before all other processes")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.inside:
        serve(words.inside)
        return
    chosen = [mode for mode in MODES if words.only in mode]
    boots = Boots(Budget(math.inf))
    with tempfile.TemporaryDirectory(prefix="kinst-live-cost-") as name:
        compile_programs(["rounds"], Path(name))
        os.environ["PATH"] = f"{name}:{os.environ['PATH']}"  # the guest's commands inherit it
        for boot in range(words.boots):
            guest = LiveGuest(Path(name))
            if words.priority:
                go_first(guests=True)
            try:
                boots.measure(guest, modes_of(guest, words.only))
            finally:
                guest.close()
            untraced = boots.untraced()[-1]
            print(f"boot {boot + 1}: untraced {untraced:.0f} ns, load {os.getloadavg()[0]:.1f}")
            show(boots, chosen)
    print(f"the medians of {boots.count} boots:")
    show(boots, chosen, last=True)


if __name__ == "__main__":
    main()
