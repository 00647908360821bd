"""A D program run on the fake machine, through all of kinst's path: the one place of these tests
that knows how the session is called."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

from kernel_file import kernel_file
from machine import Call, FakeMachine
from system import FakeSystem

from kinst.api import Machine, ProgramText, Report, Request
from kinst.events import End
from kinst.render import Destination, renderer
from kinst.session import path
from kinst.session.values import Files


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
    report = Report(
        say=said.append, progress=lambda _what, _part: None, started=time.monotonic(), verbose=True
    )
    replaced: list[tuple[str, Callable[..., Any]]] = [
        ("find_files", lambda *_: Files(kernel_file(machine.isa.name))),
        ("open_target", lambda *_: target or machine),
        ("attach", lambda *_: known),
    ]
    status = 0
    with ExitStack() as stack:
        for name, new in replaced:
            stack.enter_context(mock.patch.object(path, name, new))
        opened = stack.enter_context(Machine(asked, report=report))
        traced = opened.trace(opened.compile_request(asked), "workload")
        timer = threading.Timer(seconds, traced.stop)
        timer.start()
        stack.callback(timer.cancel)
        text = renderer("dtrace")(Destination(out.append, said.append), traced.schema)
        for event in traced.events():
            text.show(event)
            status = event.status if isinstance(event, End) else status
    return Traced(status, "".join(out), tuple(said), machine)
