"""Measure what counting every instruction of a user program costs on this host's processor.

    python -m bench.silicon [--takes N]

Programs run untraced, counted by kinst (with block counters, and without), and under valgrind's
callgrind if it is installed. The takes are interleaved; the table has the least user time of each,
as a ratio to the untraced program.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import kinst

LOOP = """
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words)
{
	unsigned long value = 1, rounds = strtoul(words[1], 0, 10);
	for (unsigned long n = 0; n < rounds; n++) {
		value ^= value << 13;
		value ^= value >> 7;
		value ^= value << 17;
		if (value & 1)
			value += n;
		else
			value -= n >> 3;
	}
	printf("%lu\\n", value);
	return 0;
}
"""
ROUNDS = 100_000_000
MEGABYTES = 7
COUNT = "kinst::*: { @[probefunc, probename] = count(); }"
# Both plant the same instructions.
WAYS = {"counted": {}, "no blocks": {"plant": "no-block"}}


@dataclass
class Measured:
    """User seconds of each take of a program, by the way in which it ran, and its hits."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    hits: int = 0
    left_out: int = 0

    def add(self, way: str, seconds: float) -> None:
        self.seconds.setdefault(way, []).append(seconds)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))


def spent(work: Callable[[], None]) -> float:
    """Return the user seconds that child processes have used during some work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    work()
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def run(words: Sequence[str]) -> None:
    with open(os.devnull, "wb") as nothing:
        subprocess.run(words, stdout=nothing, stderr=nothing, check=True)


def count(command: str, options: dict[str, str], measured: Measured) -> None:
    with kinst.process(command) as machine:
        result = machine.trace(COUNT, command, options)
        for _ in result.events():
            pass
        tables = [one.aggregation.rows for one in result.aggregations().values()]
        measured.hits = sum(v for rows in tables for v in rows.values() if isinstance(v, int))
        measured.left_out = len(result.left_out)
        result.close()


def measure(words: Sequence[str], takes: int) -> Measured:
    measured, command = Measured(), " ".join(words)
    valgrind = shutil.which("valgrind")
    for take in range(takes):
        measured.add("untraced", spent(lambda: run(words)))
        for way, options in WAYS.items():
            measured.add(way, spent(partial(count, command, options, measured)))
        if valgrind and not take:
            grind = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", *words]
            measured.add("callgrind", spent(partial(run, grind)))
    return measured


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.silicon")
    parser.add_argument("--takes", type=int, default=5)
    takes = parser.parse_args(arguments).takes
    print(f"{processor()}; least user time of {takes} takes (callgrind: 1)")
    with tempfile.TemporaryDirectory() as folder:
        loop, text = Path(folder) / "loop", Path(folder) / "text"
        subprocess.run(["gcc", "-O2", "-x", "c", "-o", loop, "-"], input=LOOP.encode(), check=True)
        words = Path("/usr/share/dict/words")
        draw = random.Random(1)
        some = words.read_text().split() if words.exists() else [str(n) for n in range(5000)]
        text.write_text(" ".join(draw.choice(some) for _ in range(MEGABYTES << 17)))
        for name, command in (
            ("a hot loop", [str(loop), str(ROUNDS)]),
            (f"gzip of {text.stat().st_size >> 20} MB", ["/usr/bin/gzip", "-c", str(text)]),
        ):
            measured = _silently(command, takes)
            base = min(measured.seconds["untraced"])
            print(f"{name}: {measured.hits:,} hits, {measured.left_out} instructions left out")
            for way, seconds in measured.seconds.items():
                least = min(seconds)
                each = (least - base) / measured.hits * 1e9 if way != "untraced" else 0.0
                print(f"  {way:<10} {least:8.2f} s {least / base:8.2f} times {each:8.3f} ns a hit")
    return 0


def _silently(command: Sequence[str], takes: int) -> Measured:
    """Measure a program whose output goes nowhere."""
    kept = os.dup(1)
    with open(os.devnull, "w") as nothing, redirect_stderr(nothing):
        os.dup2(nothing.fileno(), 1)
        try:
            return measure(command, takes)
        finally:
            os.dup2(kept, 1)
            os.close(kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
