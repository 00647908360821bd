"""System calls that another process is made to make, and its memory: a child that only counts."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kinst.core.errors import TargetError
from kinst.wire.other_process import OtherProcess
from kinst.wire.ptrace import calls_in, can_trace

pytestmark = pytest.mark.skipif(bool(can_trace()), reason="hosts of other instruction sets")
MB = 1 << 20
PAGE = 4096
# It maps 4 MB, says where, and then adds one to their first word and sleeps, for ever.
CHILD = """
import ctypes, mmap, time
memory = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
word = ctypes.c_uint64.from_buffer(memory)
memory[4096:4100] = b"mark"
print(ctypes.addressof(word), flush=True)
while True:
    word.value += 1
    time.sleep(0.001)
"""


@contextmanager
def counting() -> Iterator[tuple[OtherProcess, int]]:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        address = int(child.stdout.readline())
        process = OtherProcess(child.pid)
        process.open_memory()
        yield process, address
        assert child.poll() is None, "the child has ended"
        process.close()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def count(process: OtherProcess, address: int) -> int:
    return int.from_bytes(process.read(address, 8), "little")


def goes_on(process: OtherProcess, address: int) -> bool:
    before, end = count(process, address), time.monotonic() + 20
    while count(process, address) < before + 5 and time.monotonic() < end:
        time.sleep(0.01)
    return count(process, address) >= before + 5


def test_memory_is_read_and_written() -> None:
    with counting() as (process, address):
        assert process.read(address + PAGE, 4) == b"mark"
        process.write(address + PAGE, b"moor")
        assert process.read(address + PAGE, 4) == b"moor"
        assert any(start <= address < end for start, end in process.writable(4 * MB))
        with pytest.raises(TargetError, match="no memory"):
            process.read(16, 8)


def test_memory_is_shared_and_made_its_own_again() -> None:
    """Forty times: the child sleeps in a system call each time, which is begun again."""
    with counting() as (process, address):
        files = set(process.descriptors())
        for turn in range(40):
            place = address + MB
            with calls_in(process) as calls:
                number = calls.make_memory("shared", 2 * MB)
                shared = os.open(f"/proc/{process.pid}/fd/{number}", os.O_RDWR)
                calls.map_file(place, 2 * MB, number, 0)
                calls.close_file(number)
            with mmap.mmap(shared, 2 * MB) as ours:
                os.close(shared)
                ours[:4] = turn.to_bytes(4, "little")
                assert process.read(place, 4) == turn.to_bytes(4, "little")
                process.write(place + PAGE, b"there")
                assert ours[PAGE : PAGE + 5] == b"there"
            with calls_in(process) as calls:
                calls.map_anonymous(place, 2 * MB)
            assert process.read(place, 8) == bytes(8)
        assert goes_on(process, address)
        assert process.read(address + PAGE, 4) == b"mark"
        assert set(process.descriptors()) == files


def test_what_the_system_refuses_is_told() -> None:
    with counting() as (process, address):
        with (
            pytest.raises(TargetError, match="cannot make a system call"),
            calls_in(process) as calls,
        ):
            calls.close_file(12345)
        assert goes_on(process, address)


def test_who_is_traced_already() -> None:
    with counting() as (process, address):
        with (
            calls_in(process),
            pytest.raises(TargetError, match="traces it"),
            calls_in(process),
        ):
            pass
        assert goes_on(process, address)


def test_nobody() -> None:
    with pytest.raises(TargetError, match="no process"):
        OtherProcess(1 << 22 | 1)
