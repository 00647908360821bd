"""A D program run on the fake machine, through all of kinst's path: the one place of these tests
that knows how the session is called."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from kernel_file import kernel_file
from kinst.session.request import ProgramText, Request
from machine import Call, FakeMachine
from system import FakeSystem

from kinst.session import path, types
from kinst.session.report import Report
from kinst.session.target import Files


@dataclass(frozen=True)
class Traced:
    """What a trace said.  out: records and aggregations.  said: messages, in order."""

    status: int
    out: str
    said: tuple[str, ...]
    machine: FakeMachine

    @property
    def lines(self) -> list[str]:
        return [line for line in self.out.splitlines() if line]

    @property
    def numbers(self) -> list[int]:
        """Every number of the output, hexadecimal with 0x."""
        return [int(word, 0) for word in self.out.split()]


def trace(
    machine: FakeMachine,
    program: str,
    workload: Sequence[Call] = (),
    *,
    settings: Mapping[str, str] | None = None,
    system: FakeSystem | None = None,
    seconds: float = 20.0,
    target: Any = None,
    **request: Any,
) -> Traced:
    """Trace until the workload is done, exit() is called or `seconds` are over.

    target: what stands before the machine, if something does.  request: more of the Request.
    Raises what kinst raises.  Quiet unless settings say otherwise."""
    chosen: dict[str, str] = {"quiet": "", "bufsize": "256k", "aggsize": "256k"}
    chosen |= settings or {}
    quiet = chosen.pop("quiet", "")
    options = tuple((k, v) for k, v in chosen.items() if v is not None)
    asked = Request(
        programs=(ProgramText("n", program, "<program>"),),
        settings=(() if quiet == "no" else (("quiet", ""),)) + options,
        command="workload",
        vm=machine.isa.name,
        **request,
    )
    machine.workload = tuple(workload)
    known = system or FakeSystem(machine)
    out: list[str] = []
    said: list[str] = []
    started = time.monotonic()
    report = Report(
        write=out.append,
        say=said.append,
        progress=lambda _what, _part: None,
        guest_output=lambda _data: None,
        stop_requested=lambda: time.monotonic() > started + seconds,
        started=started,
        verbose=True,
    )
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (path, "find_files", lambda *_: Files(kernel_file(machine.isa.name))),
        (types, "find_files", lambda *_: Files(kernel_file(machine.isa.name))),
        (path, "open_target", lambda *_: target or machine),
        (path, "attach", lambda *_: known),
        (path, "CPUS", lambda: machine.cpus),
    ]
    patches = [mock.patch.object(where, name, new) for where, name, new in replaced[:-1]]
    patches.append(mock.patch.object(path, "CPUS", machine.cpus))
    for one in patches:
        one.start()
    try:
        status = path.run(asked, report)
    finally:
        for one in reversed(patches):
            one.stop()
    return Traced(status, "".join(out), tuple(said), machine)
