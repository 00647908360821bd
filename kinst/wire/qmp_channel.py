"""QEMU's machine protocol on a connected socket: JSON lines, and descriptors that go with them.

Source: QEMU's documentation, "QEMU Machine Protocol Specification" and "QMP Reference Manual"
(getfd, migrate, migrate-incoming, migrate-set-capabilities).
"""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

from kinst.core.errors import TargetError

_SECONDS = 20.0
_POLL = 0.002  # seconds between two looks at a migration


class QmpChannel:
    """The monitor at the other end of a connected socket; nothing is said before it is needed."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._input = b""
        self._agreed = False

    def close(self) -> None:
        self._sock.close()

    def execute(self, command: str, arguments: object = None, descriptor: int = -1) -> Any:
        """What a command returns; events go by.  descriptor: goes with it (getfd).  Raises
        TargetError where QEMU refuses, or is gone."""
        if not self._agreed:
            self._agreed = True
            self._line()  # the greeting
            self.execute("qmp_capabilities")
        request = {"execute": command} | ({} if arguments is None else {"arguments": arguments})
        data = json.dumps(request).encode() + b"\n"
        try:
            if descriptor < 0:
                self._sock.sendall(data)
            else:
                socket.send_fds(self._sock, [data], [descriptor])
        except OSError as error:
            raise TargetError(f"QEMU has closed its monitor: {error.strerror}") from error
        while True:
            answer = self._line()
            if "error" in answer:
                raise TargetError(f"QEMU refuses {command}: {answer['error'].get('desc', '')}")
            if "return" in answer:
                return answer["return"]

    def _line(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\n" not in self._input:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._sock], [], [], left)[0]:
                raise TargetError(f"QEMU's monitor has not answered in {_SECONDS:g} s")
            try:
                data = self._sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise TargetError("QEMU has closed its monitor")
            self._input += data
        line, _, self._input = self._input.partition(b"\n")
        try:
            value = json.loads(line)
        except ValueError as error:
            raise TargetError("QEMU's monitor does not speak QMP") from error
        return value if isinstance(value, dict) else {}

    # Migration, of all but the RAM that is shared with this process.

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
