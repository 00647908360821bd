"""A machine that runs no kernel: it answers the script of the tries as a guest would, with faults
at chosen numbers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kinst.core.errors import TargetError
from kinst.core.probe import Probe, ProbeName
from kinst.events import End, Event, Frame, Message, Output, Record, Stack, Value
from kinst.systems.linux.dialect import dialect
from kinst.trials.programs import FAILED, LISTED, LISTING, RETURNED

NULL = "BUG: kernel NULL pointer dereference, address: 0000000000000010"
CALLS = 6  # calls that the command makes


@dataclass
class Fault:
    """What happens in a try.

    Attributes:
        output: the command's output.
        log: the kernel's log.
        grown: objects that stay.
        gone: how the guest ends: "panic" or "hang"; "" if it does not.
        hang: which run hangs; "" for none.
        silent: whether the guest says nothing more.
        error: error that the outermost function returns.
        times: how many guests show the fault; 0 for all.
    """

    status: int = 1
    second: int = 0
    output: str = ""
    log: str = ""
    grown: Mapping[str, int] = field(default_factory=dict)
    gone: str = ""
    hang: str = ""
    silent: bool = False
    error: int = 12
    times: int = 0


class PretendedMachines:
    """Maker of machines whose guests have the same faults.

    Attributes:
        opened: how many machines were made.
        closed: how many were closed.
        scripts: the scripts that ran, each with the number of its machine.
    """

    def __init__(self, faults: Mapping[int, Fault]) -> None:
        self.faults = dict(faults)
        self.opened = self.closed = 0
        self.scripts: list[tuple[int, list[int]]] = []
        self.shown: dict[int, int] = {}
        self._lock = threading.Lock()

    def open(self) -> Any:
        with self._lock:
            self.opened += 1
            return PretendedMachine(self, self.opened)


class PretendedMachine:
    """The part of api.Machine that a sweep uses."""

    def __init__(self, makers: PretendedMachines, number: int) -> None:
        self._makers, self.number = makers, number
        self.dialect = dialect()
        self.release = "6.1.0"
        self.stack_register = "R_RSP"

    def compile(self, program: str, options: Mapping[str, object]) -> Any:
        assert "return(0);" in program and options["destructive"]
        return SimpleNamespace(has_stacks=False)

    def prototype(self, module: str, function: str) -> Any:
        return None

    def allocation_flag(self, name: str) -> int:
        return 0

    def trace(self, program: object, script: str) -> PretendedTrace:
        found = re.search(r"^numbers='?([\d ]+)'?$", script, re.M)
        assert found is not None
        numbers = [int(word) for word in found[1].split()]
        self._makers.scripts.append((self.number, numbers))
        return PretendedTrace(numbers, self._fault)

    def _fault(self, number: int) -> Fault | None:
        """Return what happens in a try; None if it is not among the faults, or is over."""
        fault, shown = self._makers.faults.get(number), self._makers.shown
        if fault is not None:
            shown[number] = shown.get(number, 0) + 1
            if fault.times and shown[number] > fault.times:
                return None
        return fault

    def close(self) -> None:
        self._makers.closed += 1


class PretendedTrace:
    """The part of api.Trace that a run uses."""

    def __init__(self, numbers: list[int], fault: Callable[[int], Fault | None]) -> None:
        self._numbers, self._fault = numbers, fault
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        pass

    def events(self) -> Iterator[Event]:
        yield Output(b"@warm 0\n")
        for number in self._numbers:
            fault = self._fault(number) or Fault(status=int(number <= CALLS))
            yield Output(f"@try {number}\n".encode())
            yield from records(number, fault)
            if fault.silent:
                yield Message("kinst: the traced kernel says: BUG: soft lockup", "hang")
                assert self._stopped.wait(60)
                yield End("interrupted", 0)
                return
            if fault.gone:
                yield End(fault.gone, 110, "the guest is gone")
                raise TargetError(f"the guest is gone: {fault.gone}\n{fault.log}")
            if fault.hang:
                yield Output(f"@hang {number} {fault.hang}\n@log blocked\n@over\n".encode())
                assert self._stopped.wait(60), "the run goes on after a hang"
            yield Output(lines(number, fault))
            if fault.log or fault.second:
                break
        yield End("command", 0)


def records(number: int, fault: Fault) -> Iterator[Record]:
    """Yield the records of the D program: of all calls, or of the call that fails."""
    if number == LISTING:
        for call in range(1, CALLS + 1):
            yield record(LISTED, call, stack=(call + 1) // 2)
    elif number <= CALLS:
        yield record(FAILED, number, stack=(number + 1) // 2)
        yield record(RETURNED, number, -fault.error, stack=0)


def record(*numbers: int, stack: int) -> Record:
    """Return a record with numbers and a stack: of the call with this number, or of a result."""
    call = (Frame(1, "vmlinux", "kmalloc", 0), Frame(2, "m", "f", 8 * stack))
    frames = call if stack else (Frame(3, "m", "f", 40),)
    values = [Value("", "int", number) for number in numbers]
    probe = Probe(1, ProbeName("fbt", "m", "f", "entry"))
    return Record(probe, 0, 0, 0, (*values, Value("stack()", "stack", Stack("kernel", frames))))


def lines(number: int, fault: Fault) -> bytes:
    text = f"@status {fault.status} {fault.second}\n"
    text += "".join(f"@grown {name} {count}\n" for name, count in fault.grown.items())
    text += "".join(f"@out {line}\n" for line in fault.output.splitlines())
    text += "".join(f"@log {line}\n" for line in fault.log.splitlines())
    return f"{text}@end {number}\n".encode()
