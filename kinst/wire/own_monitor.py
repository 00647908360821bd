"""The state of a machine's CPUs and devices, saved and loaded over QEMU's machine protocol.

Source: QEMU's documentation, "QMP Reference Manual" (getfd, migrate, migrate-incoming,
migrate-set-capabilities).

Tested by tests/machines/vm/test_machine.py.
"""

from __future__ import annotations

import socket
import time

from kinst.core.errors import TargetError
from kinst.wire.qmp import Qmp

_SECONDS = 20.0
_POLL = 0.002  # seconds between two looks at a migration


class OwnMonitor(Qmp):
    """The monitor of a QEMU that kinst has started, which moves all but the RAM that is shared
    with this process."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "QEMU's monitor", _SECONDS)

    def save_devices(self, descriptor: int) -> None:
        """Write the state of the stopped machine's CPUs and devices to a file.  The machine can go
        on afterwards.  Raises TargetError, for devices whose state cannot be saved among others."""
        self._shared_ram_stays()
        self.execute("getfd", {"fdname": "state"}, descriptor)
        self.execute("migrate", {"uri": "fd:state"})
        self._migrated()

    def load_devices(self, descriptor: int) -> None:
        """Take that state from a file, in a QEMU that was started with -incoming defer; the machine
        stands afterwards.  Raises TargetError where it is not this machine's."""
        self._shared_ram_stays()
        self.execute("getfd", {"fdname": "state"}, descriptor)
        self.execute("migrate-incoming", {"uri": "fd:state"})
        self._migrated()

    def _shared_ram_stays(self) -> None:
        stays = {"capability": "x-ignore-shared", "state": True}
        self.execute("migrate-set-capabilities", {"capabilities": [stays]})

    def _migrated(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while (status := self.execute("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled"):
                raise TargetError("QEMU could not move the machine's state")
            if time.monotonic() > deadline:
                raise TargetError(f"QEMU has not moved the machine's state in {_SECONDS:g} s")
            time.sleep(_POLL)
