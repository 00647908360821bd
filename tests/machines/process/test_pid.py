"""D programs that name probes of a user program, through the command."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

from kinst.cli import command
from tests.machines.process.stepped import needs_programs
from tests.machines.process.test_count_command import CALLS, DEEPER, SOURCE
from tests.machines.process.test_running import command_during, running, wait_until_planted

pytestmark = needs_programs


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pid")
    (folder / "fibonacci.c").write_text(SOURCE)
    options = ("-O1", "-g", "-fno-optimize-sibling-calls")
    subprocess.run(["gcc", *options, "-o", "program", "fibonacci.c"], cwd=folder, check=True)
    return folder / "program"


def run(text: str, program: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = command.main(["--process", "-q", "-n", text, "-c", f"{program} x"])
    captured = capfd.readouterr()
    return status, captured.out, captured.err


def rows(out: str) -> dict[str, int]:
    """Return the counts of an aggregation's keys, from kinst's output."""
    return {key: int(count) for key, count in re.findall(r"^ +(\S+) +(\d+)$", out, re.M)}


def listing(program: Path) -> list[tuple[str, str]]:
    """Return the hexadecimal offset and the text of each instruction, as objdump has them."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "--disassemble=fibonacci", program],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = re.findall(r"^ +([0-9a-f]+):\t(.*)$", text, re.M)
    first = int(found[0][0], 16)
    return [(f"{int(at, 16) - first:x}", what) for at, what in found]


def test_entries_and_returns(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "pid$target:a.out:fibonacci:entry, pid$target:program:fibonacci:return"
    status, out, err = run(f"{text} {{ @[probename] = count(); }}", program, capfd)
    assert status == 4
    found = rows(out)
    assert found["entry"] == CALLS
    assert found["return"] == CALLS or "left out" in err


def test_every_probe_of_a_function(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Instructions with the offsets of objdump; both calls run once for each deeper call."""
    text = "pid$target:a.out:fibonacci: { @[probename] = count(); }"
    status, out, err = run(text, program, capfd)
    assert status == 4
    found, code = rows(out), listing(program)
    left_out = int((re.findall(r"(\d+) instructions? cannot be planted", err) or ["0"])[0])
    assert found.keys() - {"entry", "return"} <= {at for at, _ in code}
    assert len(found) == len(code) + 2 - left_out
    assert found["entry"] == found["return"] == found["0"] == CALLS
    assert [found[at] for at, what in code if what.startswith("call")] == [DEEPER] * 2


def test_a_predicate_over_an_argument(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """fibonacci(0) is called 34 times for fibonacci(10), fibonacci(1) 55 times."""
    text = "pid$target::fibonacci:entry /(int)arg0 == 0/ { @ = count(); }"
    assert run(text, program, capfd)[1].split() == ["x", "55", "34"]
    text = "pid$target::fibonacci:entry /args[0] == 1/ { @ = count(); }"
    assert run(text, program, capfd)[1].split() == ["x", "55", "55"]


def test_functions_of_the_program(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = rows(run("pid$target:::entry { @[probefunc] = count(); }", program, capfd)[1])
    assert (found["main"], found["fibonacci"]) == (1, CALLS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pid$target::fibonacci:entry { trace(arg0); }", "can only be counted"),
        ("pid$target::fibonacci:entry { ustack(); }", "can only be counted"),
        ("pid$target::fibonacci:1000 { @ = count(); }", "outside the function"),
        ("pid1::main:entry { @ = count(); }", "does not trace process 1"),
        ("pid$target::fibonacci:begin { @ = count(); }", "an offset in hexadecimal"),
    ],
)
def test_what_is_refused(
    text: str, why: str, program: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(text, program, capfd)
    assert status == 1 and why in err
    assert "55" not in out  # it has not run


def test_probes_are_listed(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--process", "-l", "-n", "pid$target::fibonacci:", "-c", f"{program} x"]
    assert command.main(words) == 0
    rows = [row.split() for row in capfd.readouterr().out.splitlines()[1:]]
    assert {row[2:4][-1] for row in rows} >= {"fibonacci"}
    assert all(re.fullmatch(r"pid[1-9][0-9]*", row[1]) for row in rows)
    assert {row[-1] for row in rows} == {"entry", "return", *(at for at, _ in listing(program))}


def test_probes_of_a_process_that_runs_already(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path) as one:
        for target in ("$target", str(one.pid)):
            text = f"pid{target}::spin_round:entry {{ @[probename] = count(); }}"
            words = ["--process", "-q", "-n", text, "-p", str(one.pid)]
            begins = partial(wait_until_planted, one)
            assert command_during(words, lambda: one.spin(40_000), begins=begins) == 0
            assert rows(capfd.readouterr().out)["entry"] > 20_000
        # How often it spins in that time is the scheduler's.
        assert command.main([*words, "--timeout", "0.3"]) == 0
        one.ask(20)
        one.end()


CONDITIONAL = """\
.globl main, other, maybe
.type main, @function
.type other, @function
.type maybe, @function
maybe: test %edi, %edi
 jz other
 mov $5, %eax
 ret
.size maybe, . - maybe
other: mov $7, %eax
 ret
.size other, . - other
main: push %rbx
 xor %edi, %edi
 call maybe
 mov $3, %edi
 call maybe
 call maybe
 xor %eax, %eax
 pop %rbx
 ret
.size main, . - main
.section .note.GNU-stack
"""


def test_a_conditional_way_out_is_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether a branch leaves its function depends on flags, which counts do not read."""
    (tmp_path / "jumps.s").write_text(CONDITIONAL)
    subprocess.run(["gcc", "-o", "jumps", "jumps.s"], cwd=tmp_path, check=True)
    words = ["--process", "-q", "-n", "pid$target::maybe:return { @ = count(); }"]
    assert command.main([*words, "-c", str(tmp_path / "jumps")]) == 0
    captured = capfd.readouterr()
    assert captured.out.split() == ["2"]
    assert "1 instruction cannot be planted and is left out" in captured.err
