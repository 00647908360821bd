"""Reports of a monitor about its guest, and kinst --attach's reaction: one line, and nothing that
would change the guest."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.machines.attach.endpoint import find_endpoint
from kinst.wire.other_process import OtherProcess

RUNS = {
    "query-status": {"status": "running", "running": True},
    "query-migrate": {},
    "query-sev": {"enabled": False},
    "query-chardev": [],
    "qmp_capabilities": {},
}


class FakeMonitor:
    """A QMP socket in this process that gives fixed answers, events among them."""

    def __init__(self, path: Path) -> None:
        self.answers: dict[str, object] = dict(RUNS)
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(1)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._socket.accept()
        with client, client.makefile("rw") as stream:
            greeting = {"QMP": {"version": {}, "capabilities": []}}
            stream.write(json.dumps(greeting) + "\n")
            stream.flush()
            for line in stream:
                command = json.loads(line)["execute"]
                self.asked.append(command)
                stream.write(json.dumps({"event": "RTC_CHANGE", "data": {}}) + "\n")
                stream.write(json.dumps({"return": self.answers[command]}) + "\n")
                stream.flush()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[FakeMonitor]:
    made = FakeMonitor(tmp_path / "qmp")
    yield made
    made.close()


def test_a_machine_that_runs(monitor: FakeMonitor, tmp_path: Path) -> None:
    place = find_endpoint(OtherProcess(os.getpid()), str(tmp_path / "qmp"), "127.0.0.1:1234")
    assert (place.stub, place.monitor, place.added) == (
        "127.0.0.1:1234", str(tmp_path / "qmp"), False,
    )  # fmt: skip


# Source: QEMU's qapi/run-state.json, qapi/migration.json and qapi/misc.json.
@pytest.mark.parametrize(
    ("command", "answer", "word"),
    [
        *[
            ("query-status", {"status": state, "running": False}, f"QEMU says that it is {state}")
            for state in (
                "paused", "guest-panicked", "internal-error", "io-error", "shutdown", "suspended",
                "inmigrate", "postmigrate", "finish-migrate", "prelaunch", "watchdog", "debug",
            )
        ],
        *[
            ("query-migrate", {"status": state}, "is migrating")
            for state in ("setup", "active", "postcopy-active", "device", "pre-switchover")
        ],
        ("query-sev", {"enabled": True}, "encrypted"),
    ],
)  # fmt: skip
def test_what_is_refused(
    monitor: FakeMonitor, tmp_path: Path, command: str, answer: object, word: str
) -> None:
    monitor.answers[command] = answer
    with pytest.raises(TargetError, match=word) as refused:
        find_endpoint(OtherProcess(os.getpid()), str(tmp_path / "qmp"), "")
    assert refused.value.hint
    assert str(os.getpid()) in str(refused.value)
    questions = [one for one in monitor.asked if one != "qmp_capabilities"]
    assert questions
    assert all(one.startswith("query-") for one in questions)


@pytest.mark.parametrize("state", ["none", "completed", "failed", "cancelled"])
def test_a_migration_that_is_over(monitor: FakeMonitor, tmp_path: Path, state: str) -> None:
    """A failed migration leaves the guest here, and running."""
    monitor.answers["query-migrate"] = {"status": state}
    find_endpoint(OtherProcess(os.getpid()), str(tmp_path / "qmp"), "127.0.0.1:1234")
