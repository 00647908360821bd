"""The parts of attaching to a machine that kinst did not start, without one."""

from __future__ import annotations

import struct
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kinst.core.errors import TargetError
from kinst.core.return_addresses import EndedCode
from kinst.core.system import Threads
from kinst.core.threads_inside import threads_inside, unused_by_stacks
from kinst.isa import load
from kinst.machines.attach import find
from kinst.machines.attach.calls import NotMadeError
from kinst.machines.attach.changes import Changes, changed_bytes
from kinst.machines.attach.find import monitor_of, stub_of
from kinst.machines.attach.guest_allocation import GuestAllocation, allocate, free
from kinst.machines.attach.ram import FOUR_GB, HIGH_PAGES, find_ram

MB = 1 << 20
PAGE = 4096


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("qemu -s -m 1G", "127.0.0.1:1234"),
        ("qemu -gdb tcp::4000", "127.0.0.1:4000"),
        ("qemu -gdb tcp:192.168.1.1:4000,server=on,wait=off", "192.168.1.1:4000"),
        ("qemu --gdb unix:run/gdb,server=on", "/vm/run/gdb"),
        ("qemu -gdb unix:/run/gdb,server=on", "/run/gdb"),
        ("qemu -chardev socket,id=d,path=/run/d,server=on -gdb chardev:d", "/run/d"),
        ("qemu -chardev socket,path=/run/a,,b,id=d,server=on -gdb chardev:d", "/run/a,b"),
        ("qemu -chardev socket,id=d,host=0.0.0.0,port=77,server=on -gdb chardev:d",
         "127.0.0.1:77"),
        ("qemu -chardev socket,id=d,fd=7 -gdb chardev:d", ""),
        ("qemu -name -s -m 1G", "127.0.0.1:1234"),
        ("qemu -gdb none", ""),
        ("qemu -m 1G", ""),
    ],
)  # fmt: skip
def test_where_the_stub_is(line: str, where: str) -> None:
    assert stub_of(line.split(), "/vm") == where


def test_auto_is_the_only_one_that_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that kinst started has descriptors only; it is named only if there is no other."""
    lines = {
        1: "qemu-system-x86_64 -chardev socket,id=gdb,fd=7 -gdb chardev:gdb",
        2: "qemu-system-x86_64 -s",
        3: "qemu-system-x86_64 -qmp unix:/run/qmp,server",
        4: "qemu-system-aarch64 -s",
    }
    program = "qemu-system-x86_64"

    def opened(pid: int) -> SimpleNamespace:
        words = lines[pid].split()
        return SimpleNamespace(arguments=words, program=words[0])

    monkeypatch.setattr(find, "OtherProcess", opened)
    for running, only in (([1], 1), ([1, 2], 2), ([1, 3], 3), ([3], 3), ([1, 2, 4], 2), ([4], 4)):
        monkeypatch.setattr(find, "candidates", lambda running=running: running)
        assert find.the_only_one(program) == only
    monkeypatch.setattr(find, "candidates", lambda: [1, 2, 3])
    with pytest.raises(TargetError, match=r"2 QEMUs run here: 2 .*, 3 "):
        find.the_only_one(program)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("qemu -qmp unix:/run/qmp,server=on,wait=off", "/run/qmp"),
        ("qemu -qmp unix:qmp,server", "/vm/qmp"),
        ("qemu -qmp tcp:localhost:4444,server", ""),
        ("qemu -chardev socket,id=m,path=/run/m,server=on -mon chardev=m,mode=control", "/run/m"),
        ("qemu -chardev socket,id=m,path=/run/m,server=on -mon m,mode=control", "/run/m"),
        ("qemu -chardev socket,id=m,path=/run/m,server=on -mon chardev=m,mode=readline", ""),
        ("qemu -monitor stdio", ""),
    ],
)
def test_where_the_monitor_is(line: str, where: str) -> None:
    assert monitor_of(line.split(), "/vm") == where


@dataclass
class Process:
    """Another process with memory at `start`."""

    start: int
    data: bytearray
    pid: int = 7

    def writable(self, least: int) -> list[tuple[int, int]]:
        return [(self.start, self.start + len(self.data))]

    def read(self, address: int, size: int) -> bytes:
        at = address - self.start
        if at < 0 or at + size > len(self.data):
            raise TargetError("no memory there")
        return bytes(self.data[at : at + size])


@pytest.mark.parametrize("shift", [0, 6 * MB])
@pytest.mark.parametrize("base", [0, 0x4000_0000])
def test_ram_is_found_by_its_contents(shift: int, base: int) -> None:
    """RAM of 64 MB, after other memory in the same mapping or not."""
    data = bytearray(shift + 64 * MB)
    pages = {base + 16 * MB + k * PAGE: bytes([k + 1]) * PAGE for k in range(3)}
    for at, page in pages.items():
        data[shift + at - base : shift + at - base + PAGE] = page
    process = Process(0x7F00_0000_0000, data)
    high = {page: bytes(PAGE) for page in HIGH_PAGES if not base}
    (found,) = find_ram(process, base, pages, high)  # type: ignore[arg-type]
    assert (found.physical, found.host) == (base, process.start + shift)
    data[shift + 16 * MB] ^= 1
    with pytest.raises(TargetError, match="is the RAM"):
        find_ram(process, base, pages, high)  # type: ignore[arg-type]


def test_ram_above_four_gigabytes() -> None:
    """3 GB below and the rest above: the bytes at 4 GB show where the split is."""

    class Sparse(Process):
        written: dict[int, bytes] = {}  # noqa: RUF012

        def writable(self, least: int) -> list[tuple[int, int]]:
            return [(self.start, self.start + 5 * (1 << 30))]

        def read(self, address: int, size: int) -> bytes:
            return self.written.get(address - self.start, bytes(size))[:size]

    process = Sparse(1 << 40, bytearray())
    pages = {16 * MB + k * PAGE: bytes([k + 1]) * PAGE for k in range(3)}
    process.written = dict(pages) | {0xC000_0000: b"high" * 1024}
    high = {page: bytes(PAGE) for page in HIGH_PAGES} | {FOUR_GB: b"high" * 1024}
    low, above = find_ram(process, 0, pages, high)  # type: ignore[arg-type]
    assert (low.physical, low.host, low.size) == (0, 1 << 40, 0xC000_0000)
    assert (above.physical, above.host) == (FOUR_GB, (1 << 40) + 0xC000_0000)


def test_changes_are_undone_where_they_still_are() -> None:
    text = bytearray(range(256)) * 64
    memory = lambda at, size: bytes(text[at : at + size])  # noqa: E731
    first = bytes(text)
    changes = Changes()

    def write(*writes: tuple[int, bytes]) -> None:
        changes.note_text(*changed_bytes(writes, memory))
        for at, data in writes:
            text[at : at + len(data)] = data
        changes.note_written()

    wide = bytearray(text[4000:4400])  # much of it stays the same
    wide[10:15] = b"\xe9abcd"
    wide[300:301] = b"\xcc"
    write((4000, bytes(wide)), (9000, b"\x01\x02\x03"))
    text[4200] ^= 0xFF  # changed by the kernel itself, between two patches
    write((9000, first[9000:9003]))  # undone again
    text[4300] = 0x90  # another program has written over a patch
    kernel = bytes(text)
    for at, data in changes.restored(memory):
        text[at : at + len(data)] = data
    assert changes.restored(memory) == []
    changes.undone()
    assert bytes(text[4010:4015]) == first[4010:4015]
    assert text[4300] == 0x90
    assert text[4200] == kernel[4200]
    assert bytes(text[9000:9003]) == first[9000:9003]
    assert changes.restored(memory) == []
    assert changed_bytes([], memory)[0].dtype == np.uint64


@pytest.mark.parametrize("is_made", [False, True])
def test_what_is_kept_is_undone_only_until_it_is_known_to_be_made(is_made: bool) -> None:
    text = bytearray(b"original")
    changes = Changes()

    def note(at: int, data: bytes) -> None:
        changes.note_text(
            *changed_bytes([(at, data)], lambda at, size: bytes(text[at : at + size]))
        )
        text[at : at + len(data)] = data

    note(0, b"\xcc")
    changes.note_written()
    note(4, b"\xe9\xea")
    if is_made:
        changes.note_kept()
    for at, data in changes.restored(lambda at, size: bytes(text) + bytes(size - len(text))):
        text[at : at + len(data)] = data
    assert text == (b"orig\xe9\xeaal" if is_made else b"original")


@pytest.mark.parametrize("fails", range(64))
def test_any_write_may_not_be_made(fails: int) -> None:
    """A byte is written three times and restored three times, in turns.

    Some of these writes fail without notice; the byte still gets its original value.
    """
    text = bytearray(b"original")
    memory = lambda at, size: bytes(text[at : at + size])  # noqa: E731
    changes = Changes()
    for turn, data in enumerate((b"\xcc", b"o", b"\xe9", b"o", b"\x0f", b"o")):
        writes = [(0, data + b"rig")]
        changed = changed_bytes(writes, memory)
        changes.note_text(*changed)
        if not fails >> turn & 1:
            text[:4] = writes[0][1]
            changes.note_written()
        assert changes.restored(memory) == ([] if text[:1] == b"o" else [(0, b"o")])
    for at, data in changes.restored(memory):
        text[at : at + len(data)] = data
    assert text == b"original"


@pytest.mark.parametrize("fails", range(5))
@pytest.mark.parametrize("made", [False, True])
def test_a_piece_is_given_back_once_or_lost(fails: int, made: bool) -> None:
    """A failed call is made later if it was not begun."""
    pieces = [(k << 22, k << 30, (2 - k % 2) << 20) for k in (1, 2, 3)]
    allocation = GuestAllocation(list(pieces), (9 << 22, 9 << 30, 1 << 16))
    allocator = cast(Any, SimpleNamespace(release=77, page=PAGE))
    ram = cast(Any, SimpleNamespace(read_physical=lambda at, size: bytes(size)))
    given: list[tuple[int, int]] = []
    notes: list[GuestAllocation] = []
    turns = iter(range(100))

    def call(function: int, address: int, order: int) -> int:
        assert function == allocator.release
        # Memory that would be left if all processes were killed now.
        assert address not in [one[0] for one in (*notes[-1].pieces, notes[-1].tables)]
        if next(turns) == fails:
            if not made:
                raise NotMadeError("not begun")
            raise TargetError("nobody knows")
        given.append((address, PAGE << order))
        return 0

    for _ in range(2):
        with suppress(TargetError):
            free(call, allocator, allocation, ram, lambda now: notes.append(deepcopy(now)))
    wanted = {(at, size) for at, _, size in (*pieces, (9 << 22, 0, 1 << 16))}
    assert len(given) == len(set(given)) == len(wanted) - (made and fails < 4)
    assert set(given) <= wanted
    assert notes[-1].pieces == [] and notes[-1].tables == (0, 0, 0)


THREADS = Threads(
    first=0x1000, next=0, group=16, head=0, node=24, stack=40, pointer=48, running=56, size=0x400
)
SCRATCH = [(0xFFFF_0000, 0xFFFF_8000)]


class Guest:
    """Two processes, the second with two threads; stacks of 1 kB."""

    def __init__(self) -> None:
        self.data = bytearray(0x10000)
        groups = {0x1000: 0x2000, 0x1100: 0x2100, 0x1200: 0x2100}
        for k, (thread, group) in enumerate(groups.items()):
            self.word(thread + 16, group)
            self.word(thread + 40, 0x4000 + k * 0x400)
            self.word(thread + 48, 0x4000 + k * 0x400 + 0x300)
        self.word(0x1000, 0x1100)
        self.word(0x1100, 0x1000)
        self.circle(0x2000, 0x1000 + 24)
        self.circle(0x2100, 0x1100 + 24, 0x1200 + 24)

    def circle(self, *nodes: int) -> None:
        for at, following in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
            self.word(at, following)

    def word(self, at: int, value: int) -> None:
        struct.pack_into("<Q", self.data, at, value)

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.data[at : at + size])

    def inside(self, *places: tuple[int, int]) -> bool:
        """Return whether a thread is inside of scratch.

        Args:
            places: program counter and stack pointer of each CPU.
        """
        return threads_inside(self.read, THREADS, SCRATCH, [((pc, 1), sp) for pc, sp in places])


def test_who_is_inside() -> None:
    guest = Guest()
    assert not guest.inside()
    assert guest.inside((0xFFFF_1234, 0x9000)), "a CPU"
    assert not guest.inside((0xFFFF_8000, 0x9000)), "a CPU behind it"
    guest.word(0x4800 + 0x2F8, 0xFFFF_0010)
    assert not guest.inside(), "a left-over below the stack pointer"
    guest.word(0x4800 + 0x308, 0xFFFF_0010)
    assert guest.inside(), "the second thread of a process returns there"
    guest.word(0x1200 + 56, 0x10000)
    assert guest.inside(), "another flag, in a byte after the flag that it runs"
    guest.word(0x1200 + 56, 1)
    assert not guest.inside(), "its CPU is in user mode now"
    assert guest.inside((0x5000, 0x9000)), "a CPU is on a stack for interrupts: it may be that one"
    assert not guest.inside((0x5000, 0x4800 + 0x310)), "it has gone on"


def test_whose_code_nobody_is_in() -> None:
    """Two ended traces, and CPUs in the kernel, are checked in the same way."""
    guest, other = Guest(), (0xFFFF_8000, 0xFFFF_9000)
    ended = [EndedCode(one, np.zeros(0, np.uint64)) for one in (*SCRATCH, other)]
    isa = load("amd64")
    cpu = dict.fromkeys(("cs", "rip", "rax"), 0) | {isa.sp: 0x9000}
    target = SimpleNamespace(read=guest.read, cpus=1, registers=lambda number: cpu)

    def left() -> list[EndedCode]:
        return list(unused_by_stacks(target, isa, THREADS, ended))  # type: ignore[arg-type]

    assert left() == ended
    guest.word(0x4800 + 0x308, 0xFFFF_0010)
    assert left() == ended[-1:], "a thread returns to the first"
    cpu["rax"] = other[0] + 8
    assert left() == []
    cpu["cs"] = 3
    assert left() == ended[-1:], "that CPU is in user mode"
    guest.word(0x2100, 0x1100 + 24)
    guest.word(0x1100 + 24, 0x1100 + 24)
    assert left() == [], "the list has no end: nothing is known"


def test_a_list_without_an_end() -> None:
    guest = Guest()
    guest.word(0x2100, 0x1100 + 24)
    guest.word(0x1100 + 24, 0x1100 + 24)
    with pytest.raises(TargetError, match="no end"):
        guest.inside()


@dataclass(frozen=True)
class PageAllocator:
    """The parts of a page allocator that allocate() uses."""

    allocate: int = 1
    flags: int = 2
    release: int = 3
    page: int = PAGE


@pytest.mark.parametrize(("largest", "pieces"), [(10, [4, 4, 4]), (9, [2] * 5), (4, [])])
def test_memory_is_borrowed_in_the_largest_pieces_that_there_are(
    largest: int, pieces: list[int]
) -> None:
    """Twelve pieces of 4 MB are free, or smaller ones if memory is fragmented."""
    taken: dict[int, int] = {}

    def call(function: int, first: int, order: int) -> int:
        if function == 3:
            assert taken.pop(first) == order
            return 0
        if order > largest:
            return 0
        address = (len(taken) + 1) << 30
        taken[address] = order
        return address

    lend = lambda: allocate(call, PageAllocator(), lambda at: at >> 4, 10 * MB)  # type: ignore[arg-type]  # noqa: E731
    if not pieces:
        with pytest.raises(TargetError, match="10 MB of free memory"):
            lend()
        assert not taken, "all is given back"
        return
    allocation = lend()
    assert [size // MB for _, _, size in allocation.pieces] == pieces
    assert allocation.size >= 10 * MB
    assert allocation.frames[1] - allocation.frames[0] == 2 * MB or largest == 9
    assert len(taken) == len(pieces) + 1
