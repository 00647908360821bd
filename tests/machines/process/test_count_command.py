"""kinst count, annotate, cover and D programs on a user program, through the command."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kinst.cli import command
from tests.machines.process.stepped import needs_programs

pytestmark = needs_programs
# fibonacci(10) is 177 calls, of which 88 call twice.
SOURCE = """\
#include <stdio.h>
__attribute__((noinline)) int fibonacci(int n) {
  if (n < 2)
    return n;
  return fibonacci(n - 1) + fibonacci(n - 2);
}
int main(int count, char **words) {
  printf("%s %d\\n", words[1], fibonacci(10));
  return 4;
}
"""
CALLS, DEEPER = 177, 88


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("count")
    (folder / "fibonacci.c").write_text(SOURCE)
    options = ("-O1", "-g", "-fno-optimize-sibling-calls")
    subprocess.run(["gcc", *options, "-o", "program", "fibonacci.c"], cwd=folder, check=True)
    return folder / "program"


def run(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = command.main(words)
    captured = capfd.readouterr()
    return status, captured.out, captured.err


def test_functions_with_their_instructions(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    words = ["count", "-o", str(table), "-c", f"{program} 'a word'"]
    assert run(words, capfd)[:2] == (4, "a word 55\n")
    rows = {row.split()[-1]: row.split() for row in table.read_text().splitlines()}
    assert rows["fibonacci"][2] == str(CALLS)
    executed = {name: int(row[0].replace(",", "")) for name, row in rows.items() if "," in row[0]}
    assert executed["fibonacci"] > 10 * DEEPER
    assert list(rows)[1] == "fibonacci" and rows["main"][2] == "1"
    assert table.read_text().endswith(" all, without libraries\n")


def test_code_without_a_function_is_told(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is said of a program all of whose code has symbols, or if one function is counted.

    A D program that counts all instructions says it, too.
    """
    assert "not counted" not in run(["count", "-c", f"{program} x"], capfd)[2]
    hidden = tmp_path / "hidden.s"
    hidden.write_text('.section .text.hidden, "ax"\n.p2align 5\npush %rbx\nnop\npop %rbx\nret\n')
    words = ["gcc", "-O1", "-o", tmp_path / "program", program.with_name("fibonacci.c"), hidden]
    subprocess.run(words, check=True)
    err = run(["count", "-c", f"{tmp_path / 'program'} x"], capfd)[2]
    told = "kinst: 3 instructions are not counted: they belong to no function"
    assert told in err
    own = ["--process", "-c", f"{tmp_path / 'program'} x", "-n"]
    assert told in run([*own, "kinst::*: { @ = count(); }"], capfd)[2]
    assert told not in run([*own, "kinst::main: { @ = count(); }"], capfd)[2]


def test_without_a_program_the_command_itself_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(["count", "main"], capfd)
    assert status == 2
    assert "kinst: kinst count needs a program (-c 'PROGRAM ARGUMENTS', or -p PID)" in err


def test_instructions_of_a_function(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The calls in objdump's listing run once for each call that goes deeper."""
    status, out, _ = run(["count", "fibonacci", "-c", f"{program} x"], capfd)
    assert status == 4
    rows = re.findall(r"^ +([\d,-]+)  \+(\d+) +(.*)$", out, re.M)
    listing = subprocess.run(
        ["objdump", "-d", "--disassemble=fibonacci", program], capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert len(rows) == len(re.findall(r"^ +[0-9a-f]+:\t.*\t[a-z]", listing, re.M))
    assert rows[0][0] == str(CALLS)
    assert [count for count, _, text in rows if text.startswith("call")] == [str(DEEPER)] * 2


def test_a_function_with_its_source(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["annotate", "fibonacci", "--process", "-c", f"{program} x"]
    status, out, _ = run(words, capfd)
    assert status == 4
    assert f"entered {CALLS} times" in out
    assert "5   return fib" in out  # the width of the page cuts the rest


def test_lines_that_ran(program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    info = tmp_path / "info"
    words = ["cover", "fibonacci", "-o", str(info), "--process", "-c", f"{program} x"]
    assert run(words, capfd)[0] == 4
    lines = dict(re.findall(r"^DA:(\d+),(\d+)", info.read_text(), re.M))
    assert lines["3"] == str(CALLS) and lines["5"] == str(DEEPER)


def test_a_predicate_over_registers(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """fibonacci(0) is called 34 times for fibonacci(10)."""
    text = "kinst::fibonacci:0 /(int)regs[R_RDI] == 0/ { @ = count(); }"
    words = ["--process", "-q", "-n", text, "-c", f"{program} x"]
    status, out, _ = run(words, capfd)
    assert (status, out.split()) == (4, ["x", "55", "34"])


def test_the_signal_that_ended_a_program_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """A program may itself exit with the status by which a shell tells a signal."""
    words = ["--process", "-n", "kinst::main:0 { @ = count(); }", "-c"]
    status, _, err = run([*words, "sh -c 'kill -SEGV $$'"], capfd)
    assert status == 139
    assert "kinst: signal 11 (Segmentation fault) ended the command" in err
    status, _, err = run([*words, "sh -c 'exit 139'"], capfd)
    assert status == 139 and "signal" not in err


@pytest.mark.parametrize(
    "action", ["trace(regs[R_RDI]);", "@ = quantize(regs[R_RDI]);", "@[regs[R_RDI]] = count();"]
)
def test_what_is_no_counting_is_refused(
    action: str, program: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--process", "-n", f"kinst::fibonacci:0 {{ {action} }}", "-c", f"{program} x"]
    status, out, err = run(words, capfd)
    assert status == 1 and "can only be counted" in err
    assert "55" not in out  # it has not run


@pytest.mark.full
def test_more_counters_than_there_is_room_for_are_refused(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Ten counters for each of gzip's 13,000 instructions are more than the megabyte of a
    thread."""
    counts = " ".join(f"@a{k}[probefunc, probename] = count();" for k in range(10))
    words = ["--process", "-n", f"kinst::*: {{ {counts} }}", "-c", "gzip --version"]
    status, out, err = run(words, capfd)
    assert status == 1 and not out
    assert "bytes of counters for each thread" in err and "fewer aggregations" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--process", "-n", "kinst::main:"], "--process needs a program"),
        (["--process", "-n", "kinst::main:", "-c", "ls | wc"], "needs a shell"),
        (["count", "-c", "/usr/bin/ldd x"], "is a script"),
        (["count", "-c", "nowhere-at-all"], "no program"),
        (["count", "nothing", "-c", "gzip"], 'no function named "nothing"'),
        (["count", "f", "-c", "gzip"], "; kinst annotate f -c CMD counts in the kernel)"),
    ],
)
def test_other_commands_are_refused(
    words: list[str], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(words, capfd)
    assert status in (1, 2) and why in err


def test_a_program_that_uses_gs_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = 'int main(void) { __asm__ volatile("mov %%gs:0, %%rax" : : : "rax"); return 0; }\n'
    (tmp_path / "gs.c").write_text(source)
    subprocess.run(["gcc", "-o", "gs", "gs.c"], cwd=tmp_path, check=True)
    status, _, err = run(["count", "-c", str(tmp_path / "gs")], capfd)
    assert status == 1 and "uses the register gs itself, at main+" in err
