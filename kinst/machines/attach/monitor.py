"""QMP monitor of a QEMU that kinst did not start: state of its guest, and its GDB stub.

Source: QEMU's documentation, "QMP Reference Manual" and "QEMU Monitor" (gdbserver).

Tested by tests/wire/test_qmp.py.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile

from kinst.core.errors import TargetError
from kinst.wire.qmp import Qmp, connected

SECONDS = 5.0  # time-out of each answer
_FOLDER = "kinst-stub-"
_STUB = "gdb"  # label of the character device of QEMU's stub
_MOVING = ("setup", "active", "device", "wait-unplug", "pre-switchover", "postcopy-active",
           "postcopy-paused", "postcopy-recover")  # fmt: skip
_SILENCE = (
    "another client may be connected",
    "end that one, or name the machine by its process id",
)


class Monitor(Qmp):
    """Connection to a QEMU's QMP socket, for use in a `with` block: QEMU serves one client at a
    time.
    """

    def __init__(self, path: str) -> None:
        """Connect to the QMP socket at a path.  Raises TargetError if no QEMU answers."""
        super().__init__(connected(path, SECONDS), path, SECONDS, _SILENCE)
        try:
            self.agree()
        except BaseException:
            self.close()
            raise

    def status(self) -> str:
        """Return the guest's state: "running", "paused", ..."""
        return str(self.execute("query-status").get("status", "unknown"))

    def encrypts(self) -> bool:
        """Return whether the guest's memory is encrypted (SEV), as far as QEMU says."""
        try:
            return bool(self.execute("query-sev").get("enabled"))
        except TargetError:  # a QEMU without SEV
            return False

    def migrating(self) -> bool:
        """Return whether the guest is being migrated to another QEMU."""
        return self.execute("query-migrate").get("status") in _MOVING

    def stub(self) -> tuple[str, bool]:
        """Look for a GDB stub that QEMU has already.

        Returns the stub's address, as rsp.connect() takes it, or "" if there is none. Also returns
        whether a kinst that was killed has added that stub.
        """
        for device in self.execute("query-chardev"):
            if device.get("label") == _STUB:
                words = re.search(r"(?:unix|tcp):([^,]+)", str(device.get("filename", "")))
                where = words[1] if words else ""
                return where, f"/{_FOLDER}" in where
        return "", False

    def add_stub(self) -> str:
        """Make QEMU listen for a debugger on a unix socket, and return the socket's path.

        The socket has a random name in a folder that only this user can read.
        """
        path = os.path.join(tempfile.mkdtemp(prefix=_FOLDER), secrets.token_hex(8))
        said = self._human(f"gdbserver unix:{path},server=on,wait=off")
        if not os.path.exists(path):
            os.rmdir(os.path.dirname(path))
            raise TargetError(f"QEMU does not listen for a debugger: {said.strip()}")
        return path

    def remove_stub(self, path: str) -> None:
        """Remove the GDB stub that add_stub() added, and its socket.

        Args:
            path: path of the socket.
        """
        self._human("gdbserver none")
        for remove, name in ((os.unlink, path), (os.rmdir, os.path.dirname(path))):
            try:
                remove(name)
            except OSError:
                continue

    def _human(self, line: str) -> str:
        return str(self.execute("human-monitor-command", {"command-line": line}))
