"""Clients of QEMU's machine protocol (QMP): JSON lines on a unix socket, and file descriptors sent
with them.

Source: QEMU's documentation, "QEMU Machine Protocol Specification" and "QMP Reference Manual" (for
OwnMonitor: getfd, migrate, migrate-incoming, migrate-set-capabilities)."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Self

from kinst.core.errors import TargetError
from kinst.wire.sockets import wait_until_ready

_SECONDS = 20.0
_POLL = 0.002  # seconds between two looks at a migration
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7)


def owner_of(path: str, seconds: float) -> int:
    """Return the id of the process that listens on a unix socket. Raises TargetError if no process
    listens there.

    Args:
        path: path of the socket.
        seconds: time limit for the connection.
    """
    with connected(path, seconds) as sock:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(raw)
    if pid <= 0:
        raise TargetError(f"{path}: its process is in another container", "--attach PID there")
    return int(pid)


def connected(path: str, seconds: float) -> socket.socket:
    """Connect to a unix socket and return the connection. Raises TargetError if no process listens
    there.

    Args:
        path: path of the socket.
        seconds: time limit for each operation on the connection.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(seconds)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise TargetError(
            f"{path}: no QMP socket answers there: {error.strerror or error}",
            "a process id, the path of a QMP socket, or auto",
        ) from error
    return sock


class Qmp:
    """A client of a QMP monitor, on a connected socket. It sends nothing before the first
    command."""

    def __init__(
        self, sock: socket.socket, name: str, seconds: float, silence: tuple[str, str] = ("", "")
    ) -> None:
        """Take over a connected socket.

        Args:
            name: what messages call the monitor.
            seconds: time limit for each answer.
            silence: (likely cause, remedy) for the error message if no answer comes.
        """
        self._sock = sock
        self._name = name
        self._seconds = seconds
        self._silence = silence
        self._input = b""
        self._agreed = False
        # Called with each event of QEMU that is read.
        self.on_event: Callable[[dict[str, Any]], None] = lambda event: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the QMP monitor. Safe to call twice."""
        self._sock.close()

    def agree(self) -> None:
        """Read the QMP monitor's greeting and negotiate capabilities, unless that was done before.
        Raises TargetError if the peer is not a QMP monitor."""
        if self._agreed:
            return
        self._agreed = True
        if "QMP" not in self._line(time.monotonic() + self._seconds):
            raise TargetError(f"{self._name} does not speak QMP")
        self.execute("qmp_capabilities")

    def execute(self, command: str, arguments: object = None, descriptor: int = -1) -> Any:
        """Execute a QMP command and return its result. If QEMU sends events before the answer, call
        the function in the attribute on_event with each of them.

        Args:
            command: the command's name.
            arguments: the command's arguments, a JSON object.
            descriptor: a file descriptor to send with the command (getfd); -1 for none.

        Raises:
            TargetError: QEMU refuses the command, or has ended.
        """
        self.agree()
        request = {"execute": command} | ({} if arguments is None else {"arguments": arguments})
        data = json.dumps(request).encode() + b"\n"
        try:
            if descriptor < 0:
                self._sock.sendall(data)
            else:
                socket.send_fds(self._sock, [data], [descriptor])
        except OSError as error:
            raise TargetError(f"{self._name} is closed: {error.strerror}") from error
        deadline = time.monotonic() + self._seconds
        while True:
            answer = self._line(deadline)  # events may come without end
            if "error" in answer:
                why = answer["error"].get("desc", "") if isinstance(answer["error"], dict) else ""
                raise TargetError(f"QEMU refuses {command}: {' '.join(str(why).split())}")
            if "return" in answer:
                return answer["return"]
            self.on_event(answer)

    def _line(self, deadline: float) -> dict[str, Any]:
        """Return the QMP monitor's next line, parsed; {} if it is not a JSON object. Raises
        TargetError after the deadline (time.monotonic())."""
        while (late := time.monotonic() > deadline) or b"\n" not in self._input:
            left = max(0.0, deadline - time.monotonic())
            if late or not wait_until_ready([self._sock], seconds=left)[0]:
                cause, instead = self._silence
                said = f"{self._name} has not answered in {self._seconds:g} s"
                raise TargetError(f"{said}: {cause}" if cause else said, instead)
            try:
                data = self._sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise TargetError(f"{self._name} is closed: QEMU has ended, or hung up")
            self._input += data
        line, _, self._input = self._input.partition(b"\n")
        try:
            value = json.loads(line)
        except ValueError as error:
            raise TargetError(f"{self._name} does not speak QMP") from error
        return value if isinstance(value, dict) else {}


class OwnMonitor(Qmp):
    """A client of the QMP monitor of a QEMU that kinst started.

    It saves and loads the state of the machine's CPUs and devices. The RAM is left out, since kinst
    shares it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "QEMU's monitor", _SECONDS)

    def save_devices(self, descriptor: int) -> None:
        """Write the state of the stopped machine's CPUs and devices to a file. The machine can run
        on afterwards.

        Args:
            descriptor: file descriptor of the file.

        Raises:
            TargetError: QEMU cannot save the state of a device, or refuses the command.
        """
        self._shared_ram_stays()
        self.execute("getfd", {"fdname": "state"}, descriptor)
        self.execute("migrate", {"uri": "fd:state"})
        self._migrated()

    def load_devices(self, descriptor: int) -> None:
        """Load the state of CPUs and devices that save_devices() wrote to a file. QEMU must have
        been started with -incoming defer. The machine is stopped afterwards.

        Args:
            descriptor: file descriptor of the file.

        Raises:
            TargetError: the state is that of another kind of machine.
        """
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
                raise TargetError("QEMU could not save or load the machine's state")
            if time.monotonic() > deadline:
                raise TargetError(
                    f"QEMU has not saved or loaded the machine's state in {_SECONDS:g} s"
                )
            time.sleep(_POLL)
