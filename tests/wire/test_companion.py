"""A process that outlives kinst: it answers, and notices that no more requests will come."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.wire.companion import Channel, Companion
from kinst.wire.sockets import claim_name
from tests.host_processes import SECONDS


def test_it_answers_in_order_with_descriptors_and_errors(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("contents")
    told: list[object] = []

    def serve(channel: Channel) -> None:
        while (message := channel.receive()) is not None:
            (name, *rest), _ = message
            if name == "told":
                told.append(rest)
            elif name == "open":
                channel.send(told, os.open(rest[0], os.O_RDONLY))
            else:
                channel.send(TargetError("no such thing", "another"))

    companion = Companion(serve)
    companion.tell("told", 1)
    companion.tell("told", b"x" * 3_000_000)
    value, descriptor = companion.ask("open", str(file))
    assert value == [[1], [b"x" * 3_000_000]]
    assert os.read(descriptor, 20) == b"contents"
    os.close(descriptor)
    with pytest.raises(TargetError, match="no such thing"):
        companion.ask("nothing")
    companion.close()


class Interrupted:
    """A socket whose process gets a signal when it has sent so many bytes."""

    def __init__(self, sock: socket.socket, after: int) -> None:
        self._sock, self._left = sock, after

    def sendall(self, data: bytes) -> None:
        sent, self._left = data[: self._left], self._left - len(data)
        self._sock.sendall(sent)
        if self._left < 0:
            self._left = 1 << 30  # no second signal
            raise KeyboardInterrupt

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


@pytest.mark.parametrize("after", [0, 3, 8, 20])
def test_interrupted_within_a_message(tmp_path: Path, after: int) -> None:
    """Neither end waits for the other: the stream ends, and requests before it hold."""
    noted = tmp_path / "noted"

    def serve(channel: Channel) -> None:
        seen = []
        while (message := channel.receive()) is not None:
            seen.append(message[0][0])
            channel.send(len(seen))
        noted.write_text(repr(seen))

    companion = Companion(serve)
    assert companion.ask("first") == (1, -1)
    channel = companion._channel
    channel._sock = Interrupted(channel._sock, after)  # type: ignore[assignment]
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for ever"))
    signal.alarm(int(SECONDS))
    try:
        with pytest.raises(KeyboardInterrupt):
            companion.tell("second", b"x" * 1000)
        with pytest.raises(TargetError, match="is gone"):
            companion.ask("third")
        assert companion.close()
    finally:
        signal.alarm(0)
    assert noted.read_text() == "['first']"


def test_it_is_told_of_a_death_and_holds_nothing_open(tmp_path: Path) -> None:
    """Its owner is killed; a pipe that the owner wrote to ends then."""
    noted, may_end, (reader, writer) = tmp_path / "noted", tmp_path / "may-end", os.pipe()

    def serve(channel: Channel) -> None:
        seen = []
        while (message := channel.receive()) is not None:
            seen.append(message[0])
        deadline = time.monotonic() + SECONDS
        while not may_end.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        noted.write_text(repr(seen))

    child = os.fork()
    if not child:
        os.close(reader)
        companion = Companion(serve)
        companion.tell("before", 7)
        os.write(writer, b"ready")
        signal.pause()
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 5) == b"ready"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert os.read(reader, 5) == b"", "the companion has let go of the pipe"
    assert not noted.exists()
    may_end.touch()
    end = time.monotonic() + SECONDS
    while not (noted.exists() and noted.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    assert noted.read_text() == "[('before', 7)]"
    os.close(reader)


def test_a_name_is_held_once() -> None:
    first = claim_name("kinst-test-lock")
    assert first is not None
    assert claim_name("kinst-test-lock") is None
    first.close()
    again = claim_name("kinst-test-lock")
    assert again is not None
    again.close()
