"""cwd, root, d_path() and path_in_mount() on both machines, in a kernel made of bytes.

fs/d_path.c defines a path: names from the entry up to the root, across mounts.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinst.core import layout as lay
from kinst.systems.linux.paths import LinuxPaths
from tests.codegen.codegen_rig import GS_BASE, TASK_AT, HostRig, Rig, TargetRig
from tests.codegen.subroutines_rig import ERRORS, STRSIZE, compiled
from tests.tiers import draws

PATHS = LinuxPaths(
    fs=0x40, pwd=0x28, root=0x18, mount=0, dentry=8, parent=0x18, name=0x28, length=0x24,
    hashed=0x10, operations=0x60, own_name=0x48, top=0, public=0x20, above=0x10, at=0x18,
)  # fmt: skip
TASK = GS_BASE + TASK_AT
Got = list[bytes] | tuple[int, int]


@dataclass
class Kernel:
    """Structures in memory, one piece each."""

    memory: dict[int, bytes] = field(default_factory=dict)
    next: int = 0xFFFF_8881_0000_0000

    def room(self, size: int) -> int:
        self.next += 0x200
        self.memory[self.next] = bytes(size)
        return self.next

    def put(self, base: int, offset: int, value: int, size: int = 8) -> None:
        data = bytearray(self.memory[base])
        data[offset : offset + size] = value.to_bytes(size, "little")
        self.memory[base] = bytes(data)

    def entry(self, name: bytes, parent: int = 0, deleted: bool = False) -> int:
        text = self.room(len(name) + 1)
        self.memory[text] = name + b"\0"
        made = self.room(0x80)
        self.put(made, PATHS.parent, parent or made)
        self.put(made, PATHS.name, text)
        self.put(made, PATHS.length, len(name), 4)
        self.put(made, PATHS.hashed, 0 if deleted else made)
        return made

    def mount(self, top: int, above: int = 0, at: int = 0) -> int:
        """Return the address of a mount's public part; `above` is that of the mount that it is
        in."""
        made = self.room(0x80)
        self.put(made, PATHS.public + PATHS.top, top)
        self.put(made, PATHS.above, above - PATHS.public if above else made)
        self.put(made, PATHS.at, at)
        return made + PATHS.public

    def path(self, mount: int, entry: int) -> int:
        made = self.room(16)
        self.memory[made] = struct.pack("<QQ", mount, entry)
        return made

    def thread(self, root: tuple[int, int], pwd: tuple[int, int]) -> None:
        file_system = self.room(0x40)
        for offset, pair in ((PATHS.root, root), (PATHS.pwd, pwd)):
            self.put(file_system, offset + PATHS.mount, pair[0])
            self.put(file_system, offset + PATHS.dentry, pair[1])
        self.memory[TASK] = bytes(0x80)
        self.put(TASK, PATHS.fs, file_system)


class _Host(HostRig):
    paths = PATHS


class _Target(TargetRig):
    paths = PATHS


@functools.cache
def rigs() -> tuple[Rig, ...]:
    body = "trace(cwd); trace(root); trace(d_path((void *)regs[R_0]));"
    program = compiled(f"kinst::f:0 {{ {body} }} {ERRORS}")
    return tuple(r(program, {7: (0,)}, error=(1,), strsize=STRSIZE) for r in (_Host, _Target))


def read(kernel: Kernel, address: int) -> list[Got]:
    """Return cwd, root and d_path() on each machine, or the fault."""
    found: list[Got] = []
    for rig in rigs():
        rig.memory = kernel.memory
        rig.consume(rig.slot)
        rig.fire(7, {0: address})
        (record,) = rig.records(rig.slot)
        count = len(rig.layout.clauses[record.clause].fields)
        data = [rig.fields(record, action)[0] for action in range(count)]
        if record.clause == 1:
            found.append((int.from_bytes(data[0], "little"), int.from_bytes(data[1], "little")))
        else:
            found.append([d.split(b"\0")[0] for d in data])
    return found


names = st.lists(st.text("abc.", min_size=1, max_size=9).map(str.encode), max_size=6)


def tree(kernel: Kernel, mount: int, top: int, parts: list[bytes]) -> list[tuple[int, int]]:
    """Return the directories on the way down, the topmost first."""
    places = [(mount, top)]
    for part in parts:
        places.append((mount, kernel.entry(part, places[-1][1])))
    return places


@settings(max_examples=draws(25, 60), deadline=None)
@given(names, names, names, st.data())
def test_across_mounts(a: list[bytes], b: list[bytes], c: list[bytes], data: st.DataObject) -> None:
    kernel = Kernel()
    top = kernel.entry(b"/")
    places = tree(kernel, kernel.mount(top), top, a)
    for more in (b, c):
        inside = kernel.entry(b"/")
        mount = kernel.mount(inside, *places[-1])
        places[-1:] = tree(kernel, mount, inside, more)
    parts = [*a, *b, *c]
    root = data.draw(st.integers(0, len(parts)))
    here, there = (data.draw(st.integers(root, len(parts))) for _ in range(2))
    kernel.thread(places[root], places[here])

    def text(start: int, end: int) -> bytes:
        return (b"/" + b"/".join(parts[start:end]))[: STRSIZE - 1]

    expected = [text(root, here), text(0, root), text(root, there)]
    assert read(kernel, kernel.path(*places[there])) == [expected] * 2


def made() -> tuple[Kernel, int, int]:
    kernel = Kernel()
    top = kernel.entry(b"/")
    mount = kernel.mount(top)
    kernel.thread((mount, top), (mount, top))
    return kernel, mount, top


def test_a_mount_and_an_entry_have_the_path_of_their_pair() -> None:
    kernel, mount, top = made()
    within = kernel.entry(b"/")
    other = kernel.mount(within, mount, kernel.entry(b"mnt", top))
    entry = kernel.entry(b"x", within)
    text = "trace(path_in_mount((void *)regs[R_0], (void *)regs[R_1]));"
    program = compiled(f"kinst::f:0 {{ {text} }} {ERRORS}")
    for kind in (_Host, _Target):
        rig = kind(program, {7: (0,)}, error=(1,), strsize=STRSIZE, memory=kernel.memory)
        pairs = {
            (other, entry): b"/mnt/x", (other, within): b"/mnt", (other, 0): b"/mnt",
            (mount, 0): b"/", (mount, kernel.entry(b"new", top, deleted=True)): b"/new",
            (0, entry): (lay.FAULT_BADADDR, 0),
        }  # fmt: skip
        for pair, path in pairs.items():
            rig.consume(rig.slot)
            rig.fire(7, dict(enumerate(pair)))
            (record,) = rig.records(rig.slot)
            if record.clause == 0:
                assert rig.fields(record, 0)[0].split(b"\0")[0] == path
            else:
                words = [int.from_bytes(rig.fields(record, k)[0], "little") for k in range(2)]
                assert tuple(words) == path


def test_what_was_deleted_says_so() -> None:
    kernel, mount, top = made()
    entry = kernel.entry(b"gone", top, deleted=True)
    for got in read(kernel, kernel.path(mount, entry)):
        assert got == [b"/", b"/", b"/gone (deleted)"]


def test_what_is_no_file_has_no_path() -> None:
    kernel, _, _ = made()
    operations = kernel.room(0x80)
    kernel.put(operations, PATHS.own_name, 0xFFFF)
    pipe = kernel.entry(b"")
    kernel.put(pipe, PATHS.operations, operations)
    for got in read(kernel, kernel.path(kernel.mount(kernel.entry(b"")), pipe)):
        assert got == [b"/", b"/", b""]


def test_paths_leave_a_clause_its_memory() -> None:
    """Each path is made in memory that is free again after it."""
    kernel, mount, top = made()
    entry = kernel.entry(b"x", top)
    kernel.thread((mount, top), (mount, entry))
    text = "trace(cwd);" * 6 + f"this->p = alloca({lay.ARENA});"
    for kind in (_Host, _Target):
        program = compiled(f"kinst::f:0 {{ {text} }} {ERRORS}")
        rig = kind(program, {7: (0,)}, error=(1,), strsize=STRSIZE, memory=kernel.memory)
        rig.fire(7)
        (record,) = rig.records(rig.slot)
        assert record.clause == 0
        assert [rig.fields(record, k)[0].split(b"\0")[0] for k in range(6)] == [b"/x"] * 6


def test_bad_addresses_fault() -> None:
    kernel, mount, top = made()
    assert read(kernel, 0) == [(lay.FAULT_BADADDR, 0)] * 2
    assert read(kernel, 0x66) == [(lay.FAULT_BADADDR, 0x66)] * 2
    wild = kernel.entry(b"x", top)
    kernel.put(wild, PATHS.name, 0x77)
    assert read(kernel, kernel.path(mount, wild)) == [(lay.FAULT_BADADDR, 0x77)] * 2


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [([255], True), ([256], False), ([254, *[255] * 15], True), ([255] * 16, False)],
)
def test_names_and_paths_as_long_as_linux_has_them(sizes: list[int], fits: bool) -> None:
    """NAME_MAX, and PATH_MAX with the NUL (include/uapi/linux/limits.h): 255 and 4096."""
    kernel, mount, top = made()
    parts = [bytes([ord("a") + k]) * size for k, size in enumerate(sizes)]
    places = tree(kernel, mount, top, parts)
    for got in read(kernel, kernel.path(*places[-1])):
        if fits:
            assert got == [b"/", b"/", (b"/" + b"/".join(parts))[: STRSIZE - 1]]
        else:
            assert got == (lay.FAULT_BADADDR, places[1][1]), "the entry that there is no room for"


@pytest.mark.parametrize("bit", [8, 16, 24, 31])
def test_a_name_longer_than_any_is_no_name(bit: int) -> None:
    """The length has 32 bits (struct qstr): each of them that is set exceeds NAME_MAX."""
    kernel, mount, top = made()
    entry = kernel.entry(b"x", top)
    kernel.put(entry, PATHS.length, 1 << bit | 1, 4)
    assert read(kernel, kernel.path(mount, entry)) == [(lay.FAULT_BADADDR, entry)] * 2


def test_a_thread_that_is_nowhere() -> None:
    """A thread that ends has no view of the file system any more, and BEGIN has no thread.

    An argument still has a path, from the topmost root.
    """
    kernel, mount, top = made()
    path = kernel.path(mount, kernel.entry(b"x", top))
    kernel.put(TASK, PATHS.fs, 0)
    assert read(kernel, path) == [[b"", b"", b"/x"]] * 2
    del kernel.memory[TASK]
    assert read(kernel, path) == [[b"", b"", b"/x"]] * 2

    class Begin(_Host):
        context: ClassVar[dict[int, int]] = {lay.CONTEXT_CURTHREAD: 0}

    kernel, _, _ = made()
    low = {0: kernel.memory[TASK], **kernel.memory}  # readable memory there is not a thread
    text = "kinst::f:0 { trace(cwd); trace(root); }"
    host = Begin(compiled(text), {7: (0,)}, strsize=STRSIZE, memory=low)
    host.fire(7)
    (record,) = host.records(host.slot)
    assert [host.fields(record, k)[0].split(b"\0")[0] for k in range(2)] == [b"", b""]


def test_entries_that_never_end_fault() -> None:
    kernel, mount, top = made()
    first = kernel.entry(b"a", top)
    second = kernel.entry(b"b", first)
    kernel.put(first, PATHS.parent, second)
    for got in read(kernel, kernel.path(mount, second)):
        assert isinstance(got, tuple)
        assert got[0] == lay.FAULT_BADADDR
