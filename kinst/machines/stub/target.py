"""Base class of targets that kinst did not start and whose CPUs it reaches only by a GDB stub.

Tested by tests/machines/test_gdb.py and tests/vm/other_systems.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from kinst.core.errors import TargetError
from kinst.core.machine import Gone, MachineEvent, Stopped, Target
from kinst.machines.stub.cpus import Debugger
from kinst.wire.rsp import Rsp


class StubTarget(Target):
    """Base class of targets that implements Stopping (core/machine.py) by a GDB stub.

    A derived class sets the attributes when it has connected.

    Attributes:
        _rsp: the connection to the stub.
        _stub: the CPUs, reached by that connection.
        _lost: what to tell the user (Gone.reason) if the stub closes the connection.
        _ended: what to tell the user (Gone.reason) if the stub reports the end of the machine.
    """

    _rsp: Rsp
    _stub: Debugger
    _lost: str
    _ended: str

    def stop(self) -> None:
        self._stub.stop()

    def resume(self) -> None:
        self._stub.resume()

    def registers(self, cpu: int) -> Mapping[str, int]:
        return self._stub.registers(cpu)

    def write_registers(self, cpu: int, values: Mapping[str, int]) -> None:
        self._stub.write_registers(cpu, values)

    def insert_breakpoint(self, address: int) -> None:
        self._stub.insert_breakpoint(address)

    def remove_breakpoint(self, address: int) -> None:
        self._stub.remove_breakpoint(address)

    def step_over(self, cpu: int, address: int) -> None:
        self._stub.step_over(cpu, address)

    def wait(self, timeout: float) -> MachineEvent | None:
        if not self._stub.running:
            time.sleep(timeout)
            return None
        try:
            reply = self._stub.poll(timeout)
        except TargetError:
            if self._rsp.closed:
                return Gone(self._lost)
            raise
        if reply is None or isinstance(reply, Stopped):
            return reply
        return Gone(self._ended)
