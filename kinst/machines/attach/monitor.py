"""The monitor of a QEMU that somebody else started: what state its guest is in, and where its GDB
stub listens.

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

SECONDS = 5.0  # for each answer
_FOLDER = "kinst-stub-"
_STUB = "gdb"  # what QEMU calls the character device of its stub
_MOVING = ("setup", "active", "device", "wait-unplug", "pre-switchover", "postcopy-active",
           "postcopy-paused", "postcopy-recover")  # fmt: skip
_SILENCE = (
    "another client may be connected",
    "end that one, or name the machine by its process id",
)


class Monitor(Qmp):
    """A QMP socket, for the length of a with block: QEMU talks to one client at a time."""

    def __init__(self, path: str) -> None:
        """Raises TargetError where no QEMU answers."""
        super().__init__(connected(path, SECONDS), path, SECONDS, _SILENCE)
        try:
            self.agree()
        except BaseException:
            self.close()
            raise

    def status(self) -> str:
        """running, paused, ..."""
        return str(self.execute("query-status").get("status", "unknown"))

    def uses_kvm(self) -> bool:
        """Whether the host's processor runs the guest's code itself."""
        return bool(self.execute("query-kvm").get("enabled"))

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
        return str(self.execute("human-monitor-command", {"command-line": line}))
