"""What targets have in common whose CPUs are reached by a GDB stub and nothing else, in a machine
that is somebody else's, and their kinds (core/machine.py has the protocols).

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
    """The CPUs' part of a target.  Whoever inherits sets the fields when it is connected.

    _lost, _ended: why there is no machine any more, where the connection was closed, and where
    the stub says that the machine has ended."""

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

    def insert_breakpoint(self, address: int) -> None:
        self._stub.insert_breakpoint(address)

    def remove_breakpoint(self, address: int) -> None:
        self._stub.remove_breakpoint(address)

    def step_over(self, cpu: int, address: int) -> None:
        self._stub.step_over(cpu, address)

    def wait(self, timeout: float) -> MachineEvent | None:
        """See core/machine.py."""
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
