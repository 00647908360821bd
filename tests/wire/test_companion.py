"""A process that outlives kinst: it answers, and knows when nobody asks any more."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.wire.companion import Channel, Companion
from kinst.wire.lock import held


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


def test_it_is_told_of_a_death_and_holds_nothing_open(tmp_path: Path) -> None:
    """The process that has it is killed; a pipe that it wrote to ends then."""
    noted, (reader, writer) = tmp_path / "noted", os.pipe()

    def serve(channel: Channel) -> None:
        seen = []
        while (message := channel.receive()) is not None:
            seen.append(message[0])
        time.sleep(0.3)
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
    end = time.monotonic() + 20
    while not noted.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert noted.read_text() == "[('before', 7)]"
    os.close(reader)


def test_a_name_is_held_once() -> None:
    first = held("kinst-test-lock")
    assert first is not None
    assert held("kinst-test-lock") is None
    first.close()
    again = held("kinst-test-lock")
    assert again is not None
    again.close()
