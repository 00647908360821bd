"""System calls that another process is made to execute, and its memory: a child that only
counts."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kinst.core.errors import TargetError
from kinst.wire import ptrace
from kinst.wire.other_process import OtherProcess
from kinst.wire.ptrace import calls_in, can_trace
from tests.host_processes import SECONDS

pytestmark = pytest.mark.skipif(bool(can_trace()), reason="hosts of other instruction sets")
MB = 1 << 20
PAGE = 4096
# It maps 4 MB, prints the address, and then adds one to the first word and sleeps, forever.
CHILD = """
import ctypes, mmap, time
memory = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
word = ctypes.c_uint64.from_buffer(memory)
memory[4096:4100] = b"mark"
print(ctypes.addressof(word), flush=True)
while True:
    word.value += 1
    time.sleep(0.001)
"""


@contextmanager
def counting(*words: str) -> Iterator[tuple[OtherProcess, int]]:
    command = words or (sys.executable, "-c", CHILD)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    before, end = count(process, address), time.monotonic() + SECONDS
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


def test_only_pages_that_take_memory_are_read() -> None:
    """The child has written to the first two pages of its 4 MB; the others stay unallocated."""
    with counting() as (process, address):
        assert goes_on(process, address)  # it has written to the first page
        pieces = list(process.resident(address, address + 4 * MB))
        assert sum(map(len, pieces)) < MB
        assert any(piece[PAGE : PAGE + 4] == b"mark" for piece in pieces)


def test_memory_is_shared_and_made_its_own_again() -> None:
    """Forty times: the child sleeps in a system call each time, which is restarted."""
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


# It sleeps in system calls with known values in registers that calls preserve, and counts how often
# all of them were right, and results of a call other than success or EINTR.
REGISTERS = r"""
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
static uint64_t sleep_once(uint64_t n, uint64_t *wrong) {
    uint64_t after[8], vectors[4];
    long time[2] = {0, 1000000}, result;
    register uint64_t r12 __asm__("r12") = n + 1, r13 __asm__("r13") = n + 2;
    register uint64_t r14 __asm__("r14") = n + 3, r15 __asm__("r15") = n + 4;
    __asm__ volatile(
        "movq %[n], %%xmm7\n\tpunpcklqdq %%xmm7, %%xmm7\n\tmovdqa %%xmm7, %%xmm15\n\t"
        "xor %%r10d, %%r10d\n\tmov $271, %%eax\n\tstd\n\tsyscall\n\t"
        "pushfq\n\tpopq %%rcx\n\tcld\n\tmovdqu %%xmm7, (%[v])\n\tmovdqu %%xmm15, 16(%[v])"
        : "=&a"(result), "=&c"(after[0]), "+r"(r12), "+r"(r13), "+r"(r14), "+r"(r15)
        : [n] "r"(n), [v] "r"(vectors), "D"(0), "S"(0), "d"(time)
        : "r10", "r11", "xmm7", "xmm15", "memory", "cc");
    for (int k = 0; k < 4; k++)
        *wrong += vectors[k] != n;
    *wrong += r12 != n + 1 || r13 != n + 2 || r14 != n + 3 || r15 != n + 4;
    *wrong += !(after[0] & 0x400);
    return result;
}
int main(void) {
    uint64_t *page = mmap(0, 1 << 22, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%lu\n", (unsigned long)page);
    fflush(stdout);
    for (;; page[0]++) {
        int64_t result = sleep_once(page[0] * 0x9e3779b97f4a7c15, &page[1]);
        page[2] += result != 0 && result != -4;
    }
}
"""


@pytest.fixture(scope="module")
def registers_child(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("registers")
    (folder / "child.c").write_text(REGISTERS)
    subprocess.run(
        ["gcc", "-O1", "-mno-red-zone", "-o", folder / "child", folder / "child.c"], check=True
    )
    return str(folder / "child")


def test_a_tracer_is_killed_between_any_two_of_its_requests(
    registers_child: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traced process goes on undisturbed, wherever the tracer is killed."""
    request = ptrace.ptrace_request
    with counting(registers_child) as (process, address):
        ended = 0
        for last in range(1, 200):
            left = iter(range(last))
            pid = os.fork()
            if not pid:

                def counted(*arguments: object, left: Iterator[int] = left) -> None:
                    if next(left, None) is None:
                        os.kill(os.getpid(), signal.SIGKILL)
                    request(*arguments)  # type: ignore[arg-type]

                monkeypatch.setattr(ptrace, "ptrace_request", counted)
                with calls_in(process) as calls:
                    calls.close_file(calls.make_memory("shared", 2 * MB))
                    calls.map_anonymous(address + MB, 2 * MB)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            assert goes_on(process, address), last
            if os.WIFEXITED(status):
                ended = last
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
        assert ended > 20
        wrong, others = struct.unpack("<QQ", process.read(address + 8, 16))
        assert wrong == 0 and others == 0


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
