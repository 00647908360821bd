"""kinst cover of a program beside gcov of the same source: how often each line runs."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
from pathlib import Path

import pytest

from kinst.cli import command
from tests.machines.process.stepped import needs_programs

pytestmark = [needs_programs, pytest.mark.full]
FUNCTIONS, LEVELS, DEEPEST = 18, 3, 3
NAMES = "abcd"


class Source:
    """A C program that is drawn at random: functions of assignments, conditions, loops, switches,
    jumps and calls, one statement a line."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._level = 0
        self._loops = 0
        self.lines = ["#include <stdio.h>", "static volatile unsigned sink;"]
        for number in range(FUNCTIONS):
            self._function(number)
        self.lines += [
            "int main(void)", "{", "\tunsigned a = 1;",
            "\tfor (unsigned n = 0; n < 5; n++) {",
            *(f"\t\ta += f{k}(a, n);" for k in range(FUNCTIONS)),
            "\t}", '\tprintf("%u\\n", a);', "\treturn 0;", "}",
        ]  # fmt: skip

    def _function(self, number: int) -> None:
        self._level = number * LEVELS // FUNCTIONS
        kept = self._draw.choice(("static ", "", "__attribute__((noinline)) "))
        self.lines += [
            f"{kept}unsigned f{number}(unsigned a, unsigned b)", "{",
            f"\tunsigned c = a ^ {self._draw.randrange(99)};", "\tunsigned d = b + 1;",
        ]  # fmt: skip
        self._block(1)
        self.lines += ["\tif (a == b)", "\t\tgoto done;", "\tc += d;"]
        self.lines += ["done:", "\tsink += c;", "\treturn a + b + c + d;", "}"]

    def _block(self, depth: int) -> None:
        for _ in range(self._draw.randint(2, 5)):
            kinds = [self._assign, self._assign, self._call, self._logic]
            if depth <= DEEPEST:
                kinds += [self._if, self._if, self._for, self._while, self._switch, self._leave]
            self._draw.choice(kinds)(depth)

    def _put(self, depth: int, text: str) -> None:
        self.lines.append("\t" * depth + text)

    def _name(self) -> str:
        return self._draw.choice(NAMES)

    def _condition(self) -> str:
        one, other = self._name(), self._name()
        k = self._draw.randint(2, 7)
        return self._draw.choice(
            (f"{one} % {k} == 1", f"{one} > {other}", f"{one} & {k}", f"{one} % {k} && {other} & 1",
             f"{one} % {k} == 0 || {other} % 3 == 1")
        )  # fmt: skip

    def _assign(self, depth: int) -> None:
        k, name = self._draw.randint(3, 999), self._name()
        self._put(depth, f"{name} = {name} * {k} + {self._name()};")

    def _logic(self, depth: int) -> None:
        condition, to = self._condition(), self._name()
        self._put(depth, f"{to} += {condition} ? {self._name()} / 3 : {self._name()} + 1;")

    def _call(self, depth: int) -> None:
        if not self._level:
            return self._assign(depth)
        lower = self._draw.randrange(self._level * FUNCTIONS // LEVELS)
        self._put(depth, f"{self._name()} ^= f{lower}({self._name()}, {self._name()});")

    def _if(self, depth: int) -> None:
        self._put(depth, f"if ({self._condition()}) {{")
        self._block(depth + 1)
        if self._draw.random() < 0.5:
            self._put(depth, "} else {")
            self._block(depth + 1)
        self._put(depth, "}")

    def _for(self, depth: int) -> None:
        self._loops += 1
        n = f"n{self._loops}"
        self._put(depth, f"for (unsigned {n} = 0; {n} < {self._draw.randint(0, 4)}; {n}++) {{")
        self._block(depth + 1)
        if self._draw.random() < 0.3:
            self._put(depth + 1, f"if ({self._condition()})")
            self._put(depth + 2, self._draw.choice(("continue;", "break;")))
            self._assign(depth + 1)
        self._put(depth, "}")

    def _while(self, depth: int) -> None:
        self._loops += 1
        n = f"n{self._loops}"
        self._put(depth, f"unsigned {n} = {self._draw.randint(1, 4)};")
        if self._draw.random() < 0.5:
            self._put(depth, f"while ({n}--) {{")
            self._block(depth + 1)
            self._put(depth, "}")
        else:
            self._put(depth, "do {")
            self._block(depth + 1)
            self._put(depth, f"}} while (--{n});")

    def _switch(self, depth: int) -> None:
        self._put(depth, f"switch ({self._name()} % {self._draw.randint(3, 6)}) {{")
        for k in range(self._draw.randint(2, 4)):
            self._put(depth, f"case {k}:")
            self._assign(depth + 1)
            if self._draw.random() < 0.7:
                self._put(depth + 1, "break;")
        self._put(depth, "default:")
        self._assign(depth + 1)
        self._put(depth, "}")

    def _leave(self, depth: int) -> None:
        self._put(depth, f"if ({self._condition()} && a % 5 == 0)")
        self._put(depth + 1, self._draw.choice(("goto done;", "return a;")))


def by_gcov(source: Path, options: list[str], folder: Path) -> dict[int, int]:
    """Return how often each line of a program runs, by gcov(1)."""
    subprocess.run(["gcc", *options, "--coverage", "-o", "counted", source], cwd=folder, check=True)
    subprocess.run([folder / "counted"], cwd=folder, check=False, capture_output=True)
    (data,) = folder.glob("*.gcda")
    subprocess.run(["gcov", "--json-format", data], cwd=folder, check=True, capture_output=True)
    (path,) = folder.glob("*.json.gz")
    found: dict[int, int] = {}
    for file in json.loads(gzip.decompress(path.read_bytes()))["files"]:
        for line in file["lines"]:
            number = line["line_number"]
            found[number] = found.get(number, 0) + line["count"]
    return found


def by_kinst(source: Path, options: list[str], folder: Path) -> dict[int, int]:
    """Return how often each line of a program runs, by kinst cover."""
    subprocess.run(["gcc", *options, "-g", "-o", "plain", source], cwd=folder, check=True)
    info = folder / "info"
    words = ["cover", f"{source.name}", "-q", "-o", str(info), "--process"]
    command.main([*words, "-c", str(folder / "plain")])
    found: dict[int, int] = {}
    inside = False
    for line in info.read_text().splitlines():
        if line.startswith("SF:"):
            inside = line.endswith(source.name)
        elif inside and (row := re.match(r"DA:(\d+),(\d+)", line)):
            found[int(row[1])] = int(row[2])
    return found


# Lines that gcov counts and kinst does not: they have no instruction of their own, or are labels
# and first lines of functions, whose instructions have the line of a statement or of the brace.
LABELS = re.compile(
    r"case \d|default:|done:|goto done|(static |__attribute__.* )?unsigned f\d|int main"
)
CONDITION = re.compile(r"(\} )?if \(.*(&&|\|\|)")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_line_of_a_program_has_the_count_of_gcov(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All but some lines with && or || in their condition: gcov adds up how often control comes to
    some parts of the condition. Where the line before says how often the condition is reached, gcov
    gives it kinst's count."""
    lines = Source(seed).lines
    theirs, ours = compared(lines, tmp_path)
    both = theirs.keys() & ours.keys()
    assert len(both) > 800 and sum(theirs[n] > 0 for n in both) > 600
    differ = sorted(n for n in both if theirs[n] != ours[n])
    assert len(differ) < 0.01 * len(both)
    assert all(CONDITION.match(lines[n - 1].strip()) for n in differ)
    assert all(theirs[n] > ours[n] > 0 for n in differ)
    for n in reversed(differ):
        lines.insert(n - 1, "sink += 0;")
    again = by_gcov(write(lines, tmp_path / "again"), ["-O0"], tmp_path / "again")
    assert [again[n + k] for k, n in enumerate(differ)] == [ours[n] for n in differ]
    lines = Source(seed).lines
    assert not [
        lines[n - 1] for n in theirs.keys() - both if not LABELS.match(lines[n - 1].strip())
    ]
    assert {lines[n - 1] for n in ours.keys() - both} <= {"{", "}"}


def compared(lines: list[str], folder: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Return how often each line of a program runs, by gcov and by kinst."""
    source = write(lines, folder / "gcov")
    return by_gcov(source, ["-O0"], folder / "gcov"), by_kinst(source, ["-O0"], folder)


def write(lines: list[str], folder: Path) -> Path:
    folder.mkdir()
    source = folder / "drawn.c"
    source.write_text("\n".join((*lines, "")))
    return source
