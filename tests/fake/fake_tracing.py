"""A D program run on the fake machine, through all of kinst's path: the one place of these tests
that knows how the session is called."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import kinst.systems
from kinst import api
from kinst.core.options import MachineOptions
from kinst.core.probe import ProgramText
from kinst.events import End
from kinst.render import Destination, renderer
from kinst.session import request as asking
from kinst.session import tracee
from kinst.session.report import Report
from kinst.session.request import Request
from tests.fake.fake_machine import Call, FakeKind, FakeMachine
from tests.fake.fake_system import FakeSystem, FakeSystemKind


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
    said: list[str] | None = None,
    **request: Any,
) -> Traced:
    """Trace until the workload is done, exit() is called or `seconds` are over.

    system: instead of the machine's own.  unknown: kinst knows no system of this kind, and takes
    the kernel for any ELF file.  target: what stands before the machine, if something does.
    said: takes the messages.  command: end with the workload.  request: more of the Request.
    Raises what kinst raises.  Quiet."""
    chosen: dict[str, str] = {"quiet": "", "bufsize": "256k", "aggsize": "256k"}
    chosen |= settings or {}
    asked = Request(MachineOptions(debug=str(machine.file)), **request)
    machine.workload = tuple(workload)
    out: list[str] = []
    said = [] if said is None else said
    started = time.monotonic()
    report = Report(said.append, lambda _what, _part: None, started, verbose=True)
    status = 0
    with (
        found_by_name(target or machine, system, unknown=unknown),
        api.Machine(asked, report=report) as opened,
    ):
        texts = [ProgramText("n", program, "<program>")]
        made = opened.compile(texts, chosen)
        opened.start(made)
        with opened.trace(made, "workload" if command else "") as running:
            destination = Destination(write=out.append, say=said.append)
            with closing(renderer("dtrace")(destination, running.schema)) as text:
                for event in running.events():
                    text.show(event)
                    if isinstance(event, End):
                        status = event.status
                    if time.monotonic() > started + seconds:
                        running.stop()
    return Traced(status, "".join(out), tuple(said), machine)


@contextmanager
def found_by_name(
    machine: Any, system: FakeSystem | None = None, *, unknown: bool = False
) -> Iterator[None]:
    """Have kinst find this machine where it looks for kinds of machines, and the fake system, or
    `system`, among its systems; unknown: not among them."""
    kind = FakeKind(machine)
    systems = (*(() if unknown else (FakeSystemKind(system),)), *kinst.systems.kinds())
    with (
        mock.patch.object(asking, "load_kind", lambda _name: kind),
        mock.patch.object(kinst.systems, "kinds", lambda: systems),
        # The fake machine runs while it is waited for: nobody leaves a clause in the meantime.
        mock.patch.object(tracee, "SETTLE_SECONDS", 0.0),
    ):
        yield
