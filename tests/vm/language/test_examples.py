"""The scripts in examples/, unchanged, each run by the command on a kernel with a known workload.

The workload's calls are counted (tests/programs/deeds.c).  A script prints no errors and no drops,
and what examples.cases in this folder expects, which was worked out from the workload's text.  The
command in each script's first lines is run too, as a reader types it.

`make test` runs those in COVERING; all of them are slow (about 8 seconds each), as are those in
PORTABLE on the other instruction sets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT
from tests.vm.command import Result, kinst
from tools.example_index import scripts

pytestmark = pytest.mark.vm

EXAMPLES = ROOT / "examples"
COVERING = {
    "read_sizes", "failing_opens_in_detail", "path_of_an_unlink", "system_calls", "heat_map",
    "stacks_of_writes", "table_with_header", "files_read", "syscall_arguments", "open_to_close",
    "preprocessed", "task_translator",
}  # fmt: skip
# Scripts without registers, system calls or functions that only amd64's kernel has.
PORTABLE = {
    "read_sizes", "failing_opens_in_detail", "path_of_an_unlink", "heat_map", "table_with_header",
    "files_read", "preprocessed", "task_translator", "written_text", "opensnoop",
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """Expectations of a script.

    Attributes:
        options: before -s.
        arguments: $1, $2, ...
        found, not_found: expressions.
    """

    name: str
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    found: tuple[str, ...]
    not_found: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def examples() -> list[Example]:
    text = Path(__file__).with_name("examples.cases").read_text()
    found = []
    for part in re.split(r"^== ", text, flags=re.M)[1:]:
        head, *lines = part.strip().split("\n")
        name, _, words = head.partition(" | ")
        given = shlex.split(words)
        options = tuple(word for word in given if word.startswith("-"))
        arguments = tuple(word for word in given if not word.startswith("-"))
        yes = tuple(line[3:] for line in lines if line.startswith("=~ "))
        no = tuple(line[3:] for line in lines if line.startswith("!~ "))
        assert yes and len(yes) + len(no) == len(lines), head
        found.append(Example(name, options, arguments, yes, no))
    return found


def run(example: Example, deeds: Path, *options: str) -> Result:
    script = EXAMPLES / f"{example.name}.d"
    words = [*options, *example.options, "-s", str(script), "-c", "deeds", *example.arguments]
    return kinst(*words, copy=[deeds])


# Messages that are no complaints.  On a busy host the workload may take seconds to come to the
# probes.
EXPECTED = re.compile(
    r"(dtrace|kinst): (script|description) .* matched \d+ probe"
    r"|kinst: .* planted, and (none has run|no clause has recorded anything) for 2 s: "
    r"the command has not come to"
)


def complaints(example: Example, done: Result) -> list[str]:
    """Return what is wrong with a run of it."""
    wrong = [] if done.status == 0 else [f"status {done.status}"]
    wrong += [f"on stderr: {one}" for one in done.err.splitlines() if not EXPECTED.match(one)]
    wrong += [f"not there: {e}" for e in example.found if not re.search(e, done.out, re.M)]
    wrong += [f"is there: {e}" for e in example.not_found if re.search(e, done.out, re.M)]
    return [*wrong, done.out[:3000]] if wrong else []


def _parameters() -> list[object]:
    return [
        pytest.param(e, id=e.name, marks=() if e.name in COVERING else pytest.mark.slow)
        for e in examples()
    ]


@pytest.mark.parametrize("example", _parameters())
def test_example(example: Example, guest_program: Callable[[str], Path]) -> None:
    wrong = complaints(example, run(example, guest_program("deeds")))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["arm64", "riscv64"])
@pytest.mark.parametrize("example", [e for e in examples() if e.name in PORTABLE], ids=str)
def test_other_instruction_sets(
    example: Example, isa: str, program_for: Callable[[str, str], Path]
) -> None:
    wrong = complaints(example, run(example, program_for("deeds", isa), f"--vm={isa}"))
    assert not wrong, "\n".join(wrong)


# Commands of first lines that fail, because the scripts are about failures, and their status.
FAILING = {
    "calls_and_their_results": 1,
    "exits": 7,
    "failed_opens": 1,
    "failing_opens_in_detail": 1,
    "system_call_errors": 1,
    "tcp_connections": 1,
    "udp_received": 1,
    "udp_sizes": 1,
}

# Lines that are printed whatever happened in the kernel.
_HEADERS = re.compile(r"\s*$|CPU +ID|PROGRAM +READS| +PID +COMM|reads so far:$|few$|0 reads")


def tells(line: str) -> bool:
    """Return whether a line of an example's output shows that something was traced.

    Such a line is no header, and if it has numbers, not all of them are 0.
    """
    numbers = re.findall(r"(?<![\w.])\d+", line)
    return not _HEADERS.match(line) and (not numbers or any(int(n) for n in numbers))


def test_what_tells() -> None:
    assert tells("in 8, out 8") and tells("sh <- init <- init") and tells("one 0, hundred 20")
    for line in (
        "",
        "   PID COMM  FD PATH",
        "in 0, out 0",
        "0 reads of more than 1000 bytes",
        "few",
    ):
        assert not tells(line)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(scripts()))
def test_first_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in a script's first lines, as a reader types it, prints something."""
    monkeypatch.chdir(EXAMPLES.parent)
    words = shlex.split(scripts()[name].command)[1:]
    done = kinst(*words, boots="-c" in words)
    assert done.status == FAILING.get(name, 0), done
    assert any(tells(line) for line in done.out.splitlines()), done


def test_each_script_is_expected_of() -> None:
    """Every script has its expectations."""
    cases = examples()
    assert {path.stem for path in EXAMPLES.glob("*.d")} == {e.name for e in cases}
    assert len(cases) >= 100 and {e.name for e in cases} > COVERING | PORTABLE
