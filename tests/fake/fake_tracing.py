"""Run a D program on the fake machine, through the whole of kinst.

Only this module of the fake machine's tests knows how to use a session.
"""

from __future__ import annotations

import threading
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
    """Output of a trace.

    Attributes:
        out: text of records and aggregations.
        said: messages, in order.
    """

    status: int
    out: str
    said: tuple[str, ...]
    machine: FakeMachine

    @property
    def lines(self) -> list[str]:
        return [line for line in self.out.splitlines() if line]

    @property
    def numbers(self) -> list[int]:
        """Return every number of the output; hexadecimal ones begin with 0x."""
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

    Raises any exception that kinst raises.

    Args:
        settings: values of D options.
        system: used instead of the machine's own.
        unknown: hide the fake system, so that kinst takes the kernel for any ELF file.
        command: end the trace with the workload.
        target: a wrapper of the machine, to be traced instead of it.
        said: list to append messages to.
        request: more fields of the Request.
    """
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
            alarm = threading.Timer(max(0.0, started + seconds - time.monotonic()), running.stop)
            alarm.daemon = True
            alarm.start()
            with closing(renderer("dtrace")(destination, running.schema)) as text:
                for event in running.events():
                    text.show(event)
                    if isinstance(event, End):
                        status = event.status
            alarm.cancel()
    return Traced(status, "".join(out), tuple(said), machine)


@contextmanager
def found_by_name(
    machine: Any, system: FakeSystem | None = None, *, unknown: bool = False
) -> Iterator[None]:
    """Make kinst find this machine, and the fake system or `system`.

    Args:
        unknown: hide the fake system.
    """
    kind = FakeKind(machine)
    systems = (*(() if unknown else (FakeSystemKind(system),)), *kinst.systems.kinds())
    with (
        mock.patch.object(asking, "load_kind", lambda _name: kind),
        mock.patch.object(kinst.systems, "kinds", lambda: systems),
        # The fake machine runs only while kinst waits for it: no CPU leaves a clause in the
        # meantime.
        mock.patch.object(tracee, "SETTLE_SECONDS", 0.0),
    ):
        yield
