"""Measure what counting every instruction of a user program costs on this host's processor.

    python -m bench.silicon [--takes N]

Programs run untraced, counted by kinst (all instructions with block counters and without, or only
those of one function's entry), and under valgrind's callgrind if it is installed. The takes are
interleaved; the tables have the least user time of each, as a ratio to the untraced program. They
are in the format of docs/benchmarks.md.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
CALLS = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) unsigned long step(unsigned long value, unsigned long n)
{
	value = value * 6364136223846793005 + n;
	return value ^ value >> 29;
}
int main(int count, char **words)
{
	unsigned long value = 1, rounds = strtoul(words[1], 0, 10);
	for (unsigned long n = 0; n < rounds; n++)
		value = step(value, n);
	printf("%lu\\n", value);
	return 0;
}
"""
ROUNDS = 100_000_000
MEGABYTES = 7
COUNT = "kinst::*: { @[probefunc, probename] = count(); }"
ENTRY = "kinst::step:0 { @[probefunc, probename] = count(); }"
# Ways to count, each a program and its options.
WAYS = {
    "kinst, all instructions": (COUNT, {}),
    "kinst, without block counters": (COUNT, {"plant": "no-block"}),
}
WAYS_OF_CALLS = {"kinst, a function's entry": (ENTRY, {}), **WAYS}


Ways = Mapping[str, tuple[str, dict[str, str]]]


@dataclass
class Measured:
    """User seconds of each take of a program, by the way in which it ran, and its hits."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)
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


def count(
    way: str, program: str, options: dict[str, str], command: str, measured: Measured
) -> None:
    with kinst.process(command) as machine:
        result = machine.trace(program, command, options)
        for _ in result.events():
            pass
        tables = [one.aggregation.rows for one in result.aggregations().values()]
        hits = [v for rows in tables for v in rows.values() if isinstance(v, int)]
        measured.hits[way] = sum(hits)
        measured.left_out = len(result.left_out)
        result.close()


def measure(words: Sequence[str], ways: Ways, takes: int) -> Measured:
    measured, command = Measured(), " ".join(words)
    valgrind = shutil.which("valgrind")
    for take in range(takes):
        measured.add("untraced", spent(lambda: run(words)))
        for way, (program, options) in ways.items():
            work = partial(count, way, program, options, command, measured)
            measured.add(way, spent(work))
        if valgrind and not take:
            grind = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", *words]
            measured.add("valgrind's callgrind", spent(partial(run, grind)))
    return measured


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.silicon")
    parser.add_argument("--takes", type=int, default=5)
    takes = parser.parse_args(arguments).takes
    print(f"{processor()}: least user time of {takes} takes, by turns (callgrind: one take)")
    with tempfile.TemporaryDirectory() as folder:
        loop, calls, text = (Path(folder) / name for name in ("loop", "calls", "text"))
        for program, source in ((loop, LOOP), (calls, CALLS)):
            compile_it = ["gcc", "-O2", "-x", "c", "-o", str(program), "-"]
            subprocess.run(compile_it, input=source.encode(), check=True)
        words = Path("/usr/share/dict/words")
        draw = random.Random(1)
        some = words.read_text().split() if words.exists() else [str(n) for n in range(5000)]
        text.write_text(" ".join(draw.choice(some) for _ in range(MEGABYTES << 17)))
        size = text.stat().st_size >> 20
        for name, ways, command in (
            ("a hot loop", WAYS, [str(loop), str(ROUNDS)]),
            ("a loop of calls", WAYS_OF_CALLS, [str(calls), str(ROUNDS)]),
            (f"gzip of {size} MB", WAYS, ["/usr/bin/gzip", "-c", str(text)]),
        ):
            print("\n".join(table(name, _silently(command, ways, takes))), flush=True)
    return 0


def table(name: str, measured: Measured) -> Iterator[str]:
    """Yield the rows of a program's table."""
    base = min(measured.seconds["untraced"])
    yield f"\n| {name} | s | times untraced | hits | ns a hit |\n|---|---:|---:|---:|---:|"
    for way, seconds in measured.seconds.items():
        least, hits = min(seconds), measured.hits.get(way, 0)
        number, each = (f"{hits:,}", f"{(least - base) / hits * 1e9:.2f}") if hits else ("", "")
        yield f"| {way} | {least:.2f} | {least / base:.2f} | {number} | {each} |"
    yield f"\n{measured.left_out} of its instructions are left out."


def _silently(command: Sequence[str], ways: Ways, takes: int) -> Measured:
    """Measure a program whose output goes nowhere."""
    kept = os.dup(1)
    with open(os.devnull, "w") as nothing, redirect_stderr(nothing):
        os.dup2(nothing.fileno(), 1)
        try:
            return measure(command, ways, takes)
        finally:
            os.dup2(kept, 1)
            os.close(kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
