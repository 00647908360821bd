"""Process ids after a provider's name, and programs that are not traced."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from kinst.core.errors import DError
from kinst.core.options import MachineOptions
from kinst.core.probe import ProbePattern, ProgramText
from kinst.dlang.vocabulary.d_options import Options
from kinst.session.parse import options_of, parse_request
from kinst.session.process_probes import separated
from kinst.session.request import Request
from tests.machines.process.stepped import needs_programs

COMMAND = "sleep 1"


def request(text: str, kind: str = "process", command: str = COMMAND, process: int = 0) -> Request:
    options = MachineOptions(kind, process=process)
    return Request(options, (ProgramText("n", text, "<test>"),), command=command)


def pattern(asked: Request, target: int = 0) -> ProbePattern:
    (program,) = parse_request(asked, target)
    (description,) = program.clauses[0].descriptions
    return description.pattern


def test_the_id_is_separated_from_the_name() -> None:
    found = separated(ProbePattern("pid1234", "a.out", "main", "entry"))
    assert (found.provider, found.process) == ("pid", 1234)
    assert str(found) == "pid1234:a.out:main:entry"
    for other in ("fbt", "fbt12", "12", "", "p*", "pid"):
        assert separated(ProbePattern(other)) == ProbePattern(other)


@needs_programs
def test_target_is_the_traced_process() -> None:
    asked = request("pid$target:a.out:main:entry { @ = count(); }")
    assert str(pattern(asked)) == "pid$target:a.out:main:entry"  # before the process exists
    assert str(pattern(asked, 4242)) == "pid4242:a.out:main:entry"
    first = parse_request(asked, 0)
    (again,) = parse_request(asked, 4242, before=first)
    assert again.clauses[0].descriptions[0].pattern.process == 4242


@needs_programs
def test_a_process_by_its_number() -> None:
    own = os.getpid()
    asked = request(f"pid{own}::main:", command="", process=own)
    assert pattern(asked).process == own
    assert pattern(request("pid$target::main:", command="", process=own)).process == 0


@needs_programs
def test_the_program_s_name_is_its_module() -> None:
    name = os.path.basename(shutil.which("sleep") or "")
    assert pattern(request(f"pid$target:{name}:main:")).module == "a.out"
    assert pattern(request("pid$target:libc.so.6:main:")).module == "libc.so.6"


@needs_programs
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pid1:a.out:main:entry", r"pid1:a.out:main:entry: kinst does not trace process 1"
         r" \(pid\$target:a.out:main:entry is in the process that it traces"),
        ("pid:a.out:main:entry", r"names no process \(pid\$target:a.out:main:entry is in"),
    ],
)  # fmt: skip
def test_other_processes_are_refused(text: str, message: str) -> None:
    with pytest.raises(DError, match=message):
        pattern(request(text))


def test_a_kernel_has_no_such_probes() -> None:
    with pytest.raises(DError, match=r"is in a user program.*--process -c") as caught:
        pattern(request("pid$target:a.out:main:entry", kind=""))
    assert caught.value.tag == "D_PROC_GRAB"


@needs_programs
def test_aggregations_have_room_for_a_million_instructions() -> None:
    """Of 16 bytes each: ld.gold has 500,000 instructions."""
    asked = request("pid$target:::")
    assert options_of(asked, parse_request(asked, 0)).aggsize >= 16_000_000
    small = replace(asked, settings=(("aggsize", "1m"),))
    assert options_of(small, parse_request(small, 0)).aggsize == 1 << 20
    kernel = request("kinst::main:", kind="", command="")
    assert options_of(kernel, parse_request(kernel, 0)).aggsize == Options().aggsize
