"""A D program run on the fake machine, through all of kinst's path: the one place of these tests
that knows how the session is called."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from fake_kernel_file import kernel_file
from fake_machine import Call, FakeKind, FakeMachine
from fake_system import FakeSystem, FakeSystemKind

import kinst.systems
from kinst.api import Machine, ProgramText, Report, Request
from kinst.events import End
from kinst.render import Destination, renderer
from kinst.session import values


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
    unknown: bool = False,
    command: bool = True,
    seconds: float = 120.0,
    target: Any = None,
    **request: Any,
) -> Traced:
    """Trace until the workload is done, exit() is called or `seconds` are over.

    system: instead of the machine's own.  unknown: kinst knows no system of this kind, and takes
    the kernel for any ELF file.  target: what stands before the machine, if something does.
    command: end with the workload.  request: more of the Request.
    Raises what kinst raises.  Quiet unless settings say otherwise."""
    chosen: dict[str, str] = {"quiet": "", "bufsize": "256k", "aggsize": "256k"}
    chosen |= settings or {}
    quiet = chosen.pop("quiet", "")
    options = tuple((k, v) for k, v in chosen.items() if v is not None)
    asked = Request(
        programs=(ProgramText("n", program, "<program>"),),
        settings=(() if quiet == "no" else (("quiet", ""),)) + options,
        command="workload" if command else "",
        debug=str(kernel_file(machine.isa.name)),
        **request,
    )
    machine.workload = tuple(workload)
    out: list[str] = []
    said: list[str] = []
    report = Report(
        say=said.append, progress=lambda _what, _part: None, started=time.monotonic(), verbose=True
    )
    kind = FakeKind(target or machine)
    systems = (*(() if unknown else (FakeSystemKind(system),)), *kinst.systems.kinds())
    status = 0
    with (
        mock.patch.object(values, "kind_of", lambda _asked: kind),
        mock.patch.object(kinst.systems, "kinds", lambda: systems),
        Machine(asked, report=report) as opened,
    ):
        asked_for = opened.compile_request(asked)
        opened.start(asked_for)  # with scratch for this program alone
        traced = opened.trace(asked_for, asked.command)
        timer = threading.Timer(seconds, traced.stop)
        timer.start()
        try:
            text = renderer("dtrace")(Destination(out.append, said.append), traced.schema)
            for event in traced.events():
                text.show(event)
                status = event.status if isinstance(event, End) else status
        finally:
            timer.cancel()
    return Traced(status, "".join(out), tuple(said), machine)
