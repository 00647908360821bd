"""--json of examples in a running kernel: valid, and the same as the text of the same records."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinst
from kinst.kernels.fetch import Prepared
from tests.both_formats import Line, differences, invalid, trace_both
from tests.vm.command import kinst as command
from tests.vm.language.test_examples import COVERING, EXAMPLES, Example, examples

pytestmark = pytest.mark.vm

OPTIONS = {"-C": "cpp", "-F": "flowindent", "-q": "quiet", "-w": "destructive"}
READS = """fbt::vfs_read:entry /execname == "wc"/
{ printf("%s reads %d", execname, arg2); stack(4); @[stack(2)] = count(); }"""


@pytest.fixture(scope="module")
def machine(guest_program: Callable[[str], Path]) -> Iterator[kinst.Machine]:
    with kinst.boot(copies=[guest_program("deeds")]) as machine:
        yield machine


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(e, id=e.name, marks=() if e.name in COVERING else pytest.mark.slow)
        for e in examples()
    ],
)
def test_example(machine: kinst.Machine, example: Example) -> None:
    options = {OPTIONS[option]: True for option in example.options}
    script = EXAMPLES / f"{example.name}.d"
    with machine.trace(script, "deeds", options=options, arguments=example.arguments) as trace:
        both = trace_both(trace)
    assert differences(both) == []
    ends = both.of_type("end")
    assert len(ends) == 1 and ends[0]["status"] == 0 and both.lines[-1] == ends[0]
    said = both.of_type("record") + both.of_type("aggregation")
    assert bool(said) == any(one.text.strip() for one in both.shown if one.lines)


def frames_of(line: Line) -> list[Line]:
    return next(v["value"]["frames"] for v in line["values"] if v["type"] == "stack")


def test_frames_have_the_lines_of_addr2line(prepared: Prepared) -> None:
    """Files, lines and inlined functions are those of binutils, by the command itself."""
    done = command("--json", "-q", "-n", READS, "-c", "wc -l /etc/passwd").good()
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [invalid(line) for line in lines] == [[]] * len(lines)
    traced = {"command": "wc -l /etc/passwd", "kernel": prepared.release}
    assert READS in lines[-1].pop("program")
    assert lines[-1] == {"type": "end", "reason": "command", "status": 0, **traced}
    written = "".join(line["text"] for line in lines if line["type"] == "output")
    assert written.endswith("/etc/passwd\n")
    records = [line for line in lines if line["type"] == "record"]
    assert records
    frames = frames_of(records[0])
    slide = int(frames[0]["address"], 16) - _address(prepared.debug, frames[0]["function"])
    for number, frame in enumerate(frames):
        if frame.get("inlined") or "file" not in frame:
            continue
        at = int(frame["address"], 16) - slide - (number > 0)
        copies = []
        while number and frames[number - 1].get("inlined"):
            number -= 1
            copies.insert(0, frames[number])
        expected = _places(prepared.debug, at)
        assert [(one["function"], one["line"]) for one in [*copies, frame]] == [
            (function, line) for function, _, line in expected
        ]
        for one, (_, file, _) in zip([*copies, frame], expected, strict=True):
            assert file.endswith(one["file"])
    assert any("file" in frame for frame in frames) and any(f.get("inlined") for f in frames)
    (made,) = (line for line in lines if line["type"] == "aggregation")
    assert sum(row["value"] for row in made["rows"]) == len(records)
    assert frames_of_key(made["rows"][0]) == [f["function"] for f in frames[:2]]


def frames_of_key(row: Line) -> list[str]:
    return [frame["function"] for frame in row["key"][0]["frames"]]


def _address(debug: Path, function: str) -> int:
    done = subprocess.run(["nm", debug], capture_output=True, text=True, check=True)
    (found,) = (
        line.split()[0] for line in done.stdout.splitlines() if line.endswith(f" T {function}")
    )
    return int(found, 16)


def _places(debug: Path, address: int) -> list[tuple[str, str, int]]:
    """Return (function, file, line), innermost first."""
    done = subprocess.run(
        ["addr2line", "-f", "-i", "-e", debug, f"{address:#x}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    places = []
    for function, where in zip(lines[::2], lines[1::2], strict=True):
        file, _, line = where.partition(" ")[0].rpartition(":")
        places.append((function, file.replace("/./", "/"), int(line)))
    return places
