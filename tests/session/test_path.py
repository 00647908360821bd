"""One program from text to its last event, stage by stage: none is entered twice."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import kinst
from kinst import api
from kinst.core.options import MachineOptions
from kinst.core.probe import ProgramText
from kinst.events import End
from kinst.session.request import Request
from tests.fake.fake_kernel_file import kernel_file
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import found_by_name

ROOT = Path(kinst.__file__).parent
PROGRAM = "kinst::work: { @[probename] = count(); } END { printa(@); }"
# Modules that stages use, rather than hand a value to.
OWNERS = {"workspace", "values", "report", "request", "sizes", "kernel_files", "descriptions"}
# Modules of the library that call the stages.
CALLERS = {("api", "compiling"), ("api", "machine")}
STAGES = ["compile", "machine", "expand", "enable", "place", "plan", "tracee", "run"]


def module_of(frame: FrameType) -> tuple[str, str]:
    """Return the package of kinst, and the module in it, that a frame runs; empty for any
    other."""
    path = Path(frame.f_code.co_filename)
    parts = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else ()
    return (parts[0], parts[1].removesuffix(".py")) if len(parts) == 2 else ("", "")


class Walk:
    """Records the modules of session/ that the library calls, in order."""

    def __init__(self) -> None:
        self.entered: list[str] = []

    def __enter__(self) -> list[str]:
        sys.setprofile(self._called)
        return self.entered

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_back is None:
            return
        package, module = module_of(frame)
        if package != "session" or module_of(frame.f_back) not in CALLERS:
            return
        if module not in OWNERS and self.entered[-1:] != [module]:
            self.entered.append(module)


def test_no_stage_is_entered_twice() -> None:
    machine = FakeMachine("amd64")
    machine.workload = tuple(Call("exercise", (n,), n % 2) for n in range(3))
    texts = [ProgramText("n", PROGRAM, "<program>")]
    options = {"quiet": "", "bufsize": "256k", "aggsize": "256k"}
    asked = Request(MachineOptions(debug=str(kernel_file("amd64"))))
    with (
        found_by_name(machine),
        api.Machine(asked) as opened,
        Walk() as entered,
        opened.trace(texts, "workload", options) as trace,
    ):
        assert isinstance(list(trace.events())[-1], End)
    assert entered == STAGES
