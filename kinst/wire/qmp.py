"""QEMU's machine protocol: JSON lines on a unix socket.

Source: QEMU's documentation, "QEMU Machine Protocol Specification" and "QMP Reference Manual".
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import socket
import struct
import tempfile
import time
from types import TracebackType
from typing import Any, Self

from kinst.core.errors import TargetError

_SECONDS = 5.0
_FOLDER = "kinst-stub-"
_STUB = "gdb"  # what QEMU calls the character device of its stub
_MOVING = ("setup", "active", "device", "wait-unplug", "pre-switchover", "postcopy-active",
           "postcopy-paused", "postcopy-recover")  # fmt: skip
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7)


def owner_of(path: str) -> int:
    """The process that listens on a unix socket.  Raises TargetError where none does."""
    with _connected(path) as sock:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(raw)
    if pid <= 0:
        raise TargetError(f"{path}: its process is in another container", "--attach PID there")
    return int(pid)


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(_SECONDS)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise TargetError(
            f"{path}: no QMP socket answers there: {error.strerror or error}",
            "a process id, the path of a QMP socket, or auto",
        ) from error
    return sock


class Monitor:
    """A QMP socket, for the length of a with block: QEMU talks to one client at a time."""

    def __init__(self, path: str) -> None:
        """Raises TargetError where no QEMU answers."""
        self._path = path
        self._sock = _connected(path)
        self._input = b""
        try:
            if "QMP" not in self._line():
                raise TargetError(f"{path}: what listens there does not speak QMP")
            self.execute("qmp_capabilities")
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._sock.close()

    def _line(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\n" not in self._input:
            left = deadline - time.monotonic()
            if not select.select([self._sock], [], [], max(0.0, left))[0]:
                raise TargetError(
                    f"{self._path}: nobody answers there: another client may be connected",
                    "end that one, or name the machine by its process id",
                )
            data = self._sock.recv(1 << 16)
            if not data:
                raise TargetError(f"{self._path}: QEMU has closed the connection")
            self._input += data
        line, _, self._input = self._input.partition(b"\n")
        try:
            value = json.loads(line)
        except ValueError as error:
            raise TargetError(f"{self._path}: what listens there does not speak QMP") from error
        return value if isinstance(value, dict) else {}

    def execute(self, command: str, **arguments: object) -> Any:
        """What a command returns; events go by.  Raises TargetError where it fails."""
        request = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self._sock.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = self._line()
            if "error" in answer:
                raise TargetError(f"QEMU refuses {command}: {answer['error'].get('desc', '')}")
            if "return" in answer:
                return answer["return"]

    def status(self) -> str:
        """running, paused, ..."""
        return str(self.execute("query-status").get("status", "unknown"))

    def migrating(self) -> bool:
        """Whether it is sending its guest elsewhere."""
        return self.execute("query-migrate").get("status") in _MOVING

    def stub(self) -> tuple[str, bool]:
        """(where QEMU listens for a debugger already, as rsp.connect() takes it, or ""; whether
        kinst has had it added, and was killed before it could take it away)."""
        for one in self.execute("query-chardev"):
            if one.get("label") == _STUB:
                words = re.search(r"(?:unix|tcp):([^,]+)", str(one.get("filename", "")))
                where = words[1] if words else ""
                return where, f"/{_FOLDER}" in where
        return "", False

    def add_stub(self) -> str:
        """Make QEMU listen for a debugger; where: a unix socket of a name that nobody else knows,
        in a folder of this user's."""
        path = os.path.join(tempfile.mkdtemp(prefix=_FOLDER), secrets.token_hex(8))
        said = self._human(f"gdbserver unix:{path},server=on,wait=off")
        if not os.path.exists(path):
            os.rmdir(os.path.dirname(path))
            raise TargetError(f"QEMU does not listen for a debugger: {said.strip()}")
        return path

    def remove_stub(self, path: str) -> None:
        """Undo add_stub()."""
        self._human("gdbserver none")
        for remove, name in ((os.unlink, path), (os.rmdir, os.path.dirname(path))):
            try:
                remove(name)
            except OSError:
                continue

    def _human(self, line: str) -> str:
        return str(self.execute("human-monitor-command", **{"command-line": line}))
