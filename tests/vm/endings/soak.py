"""Plants and unplants at random for a given time, in a guest under load.

    python -m tests.vm.endings.soak MINUTES [--isa ISA] [--cpus 4] [--seed N] [--functions N]
        [--longest SECONDS] [--rounds N]

The guest runs tests/programs/workload.c all the time, which ends with an error if the kernel does
not behave as it must.  In each round a program of random functions (all instructions, or entries),
counting or recording, is traced for a moment.  After each round the kernel's text is compared with
the original, and the trace's drops are added up.  At the end neither kinst's memory may have grown
nor the guest's free memory shrunk.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.guest import compile_programs
from kinst import KinstError
from kinst.api.machine import Machine
from kinst.core.options import MachineOptions
from kinst.session.report import Report
from kinst.session.request import Request

CLAUSES = (
    "{ @ = count(); }",
    "{ @[execname] = count(); }",
    '{ printf("%d %s", pid, execname); }',
    "{ @ = quantize(timestamp); }",
    "{ self->t = timestamp; @[probefunc] = sum(self->t & 7); }",
)
SAME = re.compile(r"kernel text is as before")
MOST_GROWTH = 32  # MB, from one half of the rounds to the other
LEAST_ROUNDS = 20  # before memory is first measured: by then caches are full


def resident() -> int:
    """Return the bytes of memory of this process, without the guest's memory that is mapped in it.

    The code of ended traces in that memory is reused when scratch is full (docs/scale.md).
    """
    pages = [int(word) for word in Path("/proc/self/statm").read_text().split()]
    guest = re.search(r"^RssShmem:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert guest is not None
    return pages[1] * resource.getpagesize() - (int(guest[1]) << 10)


class Soak:
    """A guest under load, and the totals so far."""

    def __init__(
        self, isa: str, cpus: int, functions: int, seed: int, longest: float, folder: Path
    ) -> None:
        self.longest = longest
        self.numbers = random.Random(seed)
        self.said: list[str] = []
        self.counts: Counter[str] = Counter()
        self.memory: list[tuple[int, int]] = []  # of kinst, free in the guest
        (workload,) = compile_programs(["workload"], folder, isa)
        report = Report(self.said.append, lambda *_: None, time.monotonic(), verbose=True)
        request = Request(MachineOptions(isa=isa, cpus=cpus, copies=(workload,)))
        self.machine = Machine(request, report=report)
        self.machine.start()
        listed = self.machine.probes("fbt:::entry", details=False)
        names = sorted({(one.module, one.function) for one in listed})
        self.functions = self.numbers.sample(names, min(functions, len(names)))
        self.cpus = cpus

    def begin(self) -> None:
        """Start the load, which goes on during all rounds."""
        command = f"(workload 1000000 {self.cpus} >/tmp/load 2>&1; echo ended >>/tmp/load) &"
        self.machine.run("BEGIN { }", command=command)

    def ask(self, command: str) -> str:
        return self.machine.run("BEGIN { }", command=command).output.decode()

    def round(self) -> None:
        """Plant, wait, unplant.

        Raises:
            AssertionError: the text differs.
        """
        chosen = self.numbers.sample(self.functions, self.numbers.randrange(1, 30))
        form = self.numbers.choice(("kinst:{0}:{1}:", "fbt:{0}:{1}:entry", "fbt:{0}:{1}:return"))
        # One probe that always exists: a function may have no return, and kinst would plant
        # nothing.
        probes = ", ".join(["kinst::vfs_read:0", *(form.format(*name) for name in chosen)])
        program = f"{probes} {self.numbers.choice(CLAUSES)}"
        options = {"bufsize": self.numbers.choice(("64k", "1m")), "zdefs": True}
        del self.said[:]
        try:
            result = self.machine.run(
                program, options=options, seconds=self.numbers.uniform(0.02, self.longest)
            )
        except KinstError as error:
            self.counts[f"refused: {error}"[:100]] += 1
            return
        if not any("plant " in one for one in self.said):
            self.counts["over before anything was planted"] += 1  # the shortest, on a busy host
            return
        assert any(map(SAME.search, self.said)), (program, self.said)
        self.counts["rounds"] += 1
        self.counts["records"] += len(result.records)
        for lost in result.lost:
            self.counts[f"dropped: {lost.kind}"] += lost.count
        for rows in result.aggregations.values():
            self.counts["keys"] += len(rows)

    def look(self) -> None:
        """Measure memory, and check that the load still runs."""
        text = self.ask(
            "cat /tmp/load; grep MemAvailable /proc/meminfo; dmesg -l 0,1,2,3,4 | tail -3"
        )
        assert "ended" not in text, f"the workload ended: {text}"
        free = re.search(r"MemAvailable: *(\d+)", text)
        assert free is not None, text
        self.memory.append((resident(), int(free[1]) << 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--isa", default="amd64")
    parser.add_argument("--cpus", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--functions", type=int, default=300)
    parser.add_argument("--longest", type=float, default=0.5, help="seconds of a trace (0.5)")
    parser.add_argument("--rounds", type=int, default=0, help="no fewer, however long it takes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = (asked.isa, asked.cpus, asked.functions, asked.seed, asked.longest)
        soak = Soak(*settings, Path(folder))
        with soak.machine:
            soak.begin()
            ends = time.monotonic() + 60 * asked.minutes
            done = 0
            while time.monotonic() < ends or soak.counts["rounds"] < asked.rounds:
                soak.round()
                done += 1
                if done >= LEAST_ROUNDS and done % 10 == 0:
                    soak.look()
                    own, free = soak.memory[-1]
                    minute = (time.monotonic() - ends) / 60 + asked.minutes
                    memory = f"kinst {own >> 20} MB, guest {free >> 20} MB free"
                    print(f"{done} in {minute:.1f} min: {memory}", flush=True)
            soak.look()
    for what, count in sorted(soak.counts.items()):
        print(f"{count:10} {what}")
    half = max(len(soak.memory) // 2, 1)
    for name, column, growth in (("kinst's", 0, 1), ("the guest's free", 1, -1)):
        values = [row[column] >> 20 for row in soak.memory]
        first, second = statistics.median(values[:half]), statistics.median(values[half:] or values)
        print(f"memory, {name}: {first:.0f} MB in the first half of the rounds, then {second:.0f}")
        assert growth * (second - first) < MOST_GROWTH, "it grows"


if __name__ == "__main__":
    main()
