"""Memory at the same address in each process, and code that this process runs."""

from __future__ import annotations

import ctypes
import gc
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kinst.wire.memory import CodeMemory, SharedMemory, has_usual_address, private_memory
from kinst.wire.native import address_of

TELL = """
from kinst.wire.memory import SharedMemory, private_memory
from kinst.wire.native import address_of
print(address_of({memory}))
"""


def mapped(address: int) -> bool:
    """Return whether a page of this process is mapped at an address, as the host's kernel says."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(one, 16) for one in line.split()[0].split("-"))
        if low <= address < high:
            return True
    return False


@pytest.mark.parametrize("memory", ["private_memory(8192)", 'SharedMemory("test", 8192).view'])
def test_each_process_has_its_first_memory_at_one_address(memory: str) -> None:
    command = [sys.executable, "-c", TELL.format(memory=memory)]
    first, second = (
        int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    )
    assert first == second and has_usual_address(first)


def test_memory_is_unmapped_after_its_last_view() -> None:
    view = private_memory(1 << 20)
    part = view[4096:]
    address = address_of(view)
    other = private_memory(4096)  # the usual address is taken
    assert address_of(other) != address
    assert set(view) == {0}
    view[5000] = 7
    del view
    gc.collect()
    assert mapped(address) and part[5000 - 4096] == 7
    del part
    gc.collect()
    assert not mapped(address)


def test_a_part_of_shared_memory_is_cleared() -> None:
    memory = SharedMemory("test", 4 * 4096)
    memory.view[:] = b"x" * (4 * 4096)
    memory.clear(4096, 8192)
    assert memory.extents() == [(0, 4096), (3 * 4096, 4096)]
    assert bytes(memory.view) == b"x" * 4096 + bytes(8192) + b"x" * 4096
    memory.close()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is amd64's")
def test_code_runs_and_is_not_writable() -> None:
    code = CodeMemory(bytes.fromhex("b82a000000c3"))  # mov eax, 42; ret
    assert ctypes.CFUNCTYPE(ctypes.c_int)(code.address)() == 42
    (line,) = [
        one for one in Path("/proc/self/maps").read_text().splitlines()
        if int(one.split("-")[0], 16) == code.address
    ]  # fmt: skip
    assert line.split()[1] == "r-xp"
    address = code.address
    del code
    gc.collect()
    assert not mapped(address)
