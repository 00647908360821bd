"""QEMU's machine protocol, with a QEMU that answers what a test wants."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kinst.core.errors import TargetError
from kinst.machines.attach.monitor import Monitor
from kinst.wire.qmp import Qmp, owner_of

Answer = Callable[[dict[str, Any]], object]


@contextmanager
def qemu(path: Path, answer: Answer) -> Iterator[None]:
    """A monitor that answers each command, with an event before each answer."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with suppress(ConnectionError), client, client.makefile("rwb") as stream:
                stream.write(b'{"QMP": {"version": {}}}\n')
                stream.flush()
                for line in stream:
                    stream.write(b'{"event": "RESUME"}\n')
                    stream.write(json.dumps(answer(json.loads(line))).encode() + b"\n")
                    stream.flush()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        server.close()


def returns(**values: object) -> Answer:
    return lambda request: {"return": values.get(request["execute"].replace("-", "_"), {})}


@pytest.mark.parametrize(
    ("error", "said"),
    [({"desc": "no\nroom"}, "QEMU refuses cont: no room"), ("no", "QEMU refuses cont: "),
     ({"desc": 7}, "QEMU refuses cont: 7")],
)  # fmt: skip
def test_a_refusal_is_said_in_one_line(error: object, said: str, tmp_path: Path) -> None:
    def answer(asked: dict[str, Any]) -> object:
        return {"return": {}} if asked["execute"] == "qmp_capabilities" else {"error": error}

    path = tmp_path / "qmp"
    with qemu(path, answer), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        with pytest.raises(TargetError) as caught:
            Qmp(sock, "the monitor", 5.0).execute("cont")
    assert str(caught.value) == said


def test_states(tmp_path: Path) -> None:
    path = tmp_path / "qmp"
    said = returns(query_status={"status": "paused"}, query_migrate={"status": "active"})
    with qemu(path, said):
        assert owner_of(str(path), 5.0) == os.getpid()
        with Monitor(str(path)) as monitor:
            assert monitor.status() == "paused"
            assert monitor.migrating()


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("disconnected:unix:/tmp/kinst-stub-x/abc,server=on", ("/tmp/kinst-stub-x/abc", True)),
        ("disconnected:tcp:127.0.0.1:1234,server=on", ("127.0.0.1:1234", False)),
        ("disconnected:unix:/run/vm.gdb,server=on", ("/run/vm.gdb", False)),
        ("null", ("", False)),
    ],
)
def test_a_stub_that_listens_already(
    tmp_path: Path, filename: str, expected: tuple[str, bool]
) -> None:
    path = tmp_path / "qmp"
    devices = [{"label": "serial0", "filename": "unix:/x"}, {"label": "gdb", "filename": filename}]
    with qemu(path, returns(query_chardev=devices)), Monitor(str(path)) as monitor:
        assert monitor.stub() == expected


def test_a_stub_is_added_and_taken_away(tmp_path: Path) -> None:
    path, asked = tmp_path / "qmp", []

    def answer(request: dict[str, Any]) -> object:
        line = request.get("arguments", {}).get("command-line", "")
        asked.append(line)
        if line.startswith("gdbserver unix:"):
            Path(line.removeprefix("gdbserver unix:").split(",")[0]).touch()
        return {"return": ""}

    with qemu(path, answer), Monitor(str(path)) as monitor:
        where = monitor.add_stub()
        assert Path(where).parent.stat().st_mode & 0o777 == 0o700
        monitor.remove_stub(where)
        assert not Path(where).parent.exists()
    assert asked[-1] == "gdbserver none"


def test_refusals_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "qmp"

    def failure(request: dict[str, Any]) -> object:
        agreed = request["execute"] == "qmp_capabilities"
        return {"return": {}} if agreed else {"error": {"desc": "not now"}}

    with (
        qemu(path, failure),
        Monitor(str(path)) as monitor,
        pytest.raises(TargetError, match="QEMU refuses query-status: not now"),
    ):
        monitor.status()
    with pytest.raises(TargetError, match="no QMP socket answers"):
        owner_of(str(tmp_path / "nothing"), 5.0)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", "the monitor has not answered in 0.1 s: it sleeps"),
        (b"SSH-2.0\n", "the monitor does not speak QMP"),
        (b'{"hello": 1}\n', "the monitor does not speak QMP"),
        (None, "the monitor is closed"),
    ],
)
def test_what_is_no_monitor(said: bytes | None, error: str) -> None:
    ours, theirs = socket.socketpair()
    with theirs, Qmp(ours, "the monitor", 0.1, ("it sleeps", "wake it")) as qmp:
        if said is None:
            theirs.close()
        else:
            theirs.sendall(said)
        with pytest.raises(TargetError, match=error):
            qmp.execute("query-status")


def test_the_connection_ends_with_its_client() -> None:
    """QEMU's monitor serves a single client at a time: it waits for the end of the connection."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(20)
    with theirs:
        with Qmp(ours, "the monitor", 1.0) as qmp:
            theirs.sendall(b'{"QMP": {}}\n{"return": {}}\n{"return": {"status": "running"}}\n')
            assert qmp.execute("query-status") == {"status": "running"}
        asked = b"".join(iter(lambda: theirs.recv(4096), b""))
        assert asked.count(b"\n") == 2
        qmp.close()  # a second time changes nothing


def test_events_without_end_are_no_answer(tmp_path: Path) -> None:
    """They come faster than kinst waits, and do not make it wait forever."""
    ours, theirs = socket.socketpair()

    def chatter() -> None:
        with suppress(OSError):
            theirs.sendall(b'{"QMP": {}}\n')
            theirs.recv(4096)
            theirs.sendall(b'{"return": {}}\n')
            while True:
                theirs.sendall(b'{"event": "RTC_CHANGE"}\n' * 100)

    threading.Thread(target=chatter, daemon=True).start()
    monitor = Qmp(ours, "the monitor", 0.5)
    began = time.monotonic()
    with monitor, pytest.raises(TargetError, match="has not answered in"):
        monitor.execute("query-status")
    assert time.monotonic() - began < 20
    theirs.close()
