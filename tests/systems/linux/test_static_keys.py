"""Static keys that kinst turns on and off, in a kernel's file in place of its memory.

What the kernel itself would do in between is written by hand: the count in struct static_key, and
the bytes that it would leave at sites that it may change.
"""

from __future__ import annotations

import capstone
import pytest

from kinst.core.errors import KinstError
from kinst.kernels.fetch import Prepared
from tests.systems.linux.kernel_file import BOOT, KernelFile

NAMES = ("sched_switch", "sched_wakeup", "kmalloc", "writeback_mark_inode_dirty")


@pytest.fixture
def file(prepared: Prepared) -> KernelFile:
    return KernelFile("amd64", prepared.debug)


def key_of(file: KernelFile, name: str) -> int:
    at = file.elf.address(f"__tracepoint_{name}")
    assert at is not None
    return at + file.btf.offset("tracepoint", "key")


def switch(file: KernelFile, name: str, *, on: bool) -> list[tuple[int, bytes]]:
    writes = file.keys.switched([key_of(file, name)], on=on)
    assert writes is not None
    file.memory.write(writes)
    return writes


def users(file: KernelFile, name: str, count: int) -> None:
    file.memory.write([(key_of(file, name), count.to_bytes(4, "little", signed=True))])


def labels(file: KernelFile, key: int) -> dict[int, int]:
    """Return where each site of a key is and where its jump leads, from the jump table itself."""
    start, stop = (file.elf.address(f"__{end}___jump_table") for end in ("start", "stop"))
    assert start and stop
    raw, found = file.elf.read(start, stop - start), {}
    for at in range(0, len(raw), 16):
        code, target = (int.from_bytes(raw[at + k : at + k + 4], "little", signed=True)
                        for k in (0, 4))  # fmt: skip
        distance = int.from_bytes(raw[at + 8 : at + 16], "little", signed=True)
        if start + at + 8 + (distance & ~3) == key:
            found[start + at + code] = start + at + 4 + target
    return found


@pytest.mark.parametrize("name", NAMES)
def test_on_and_off_again(file: KernelFile, name: str) -> None:
    before = dict(file.memory.written)
    expected = labels(file, key_of(file, name))
    writes = switch(file, name, on=True)
    jumps = {at: data for at, data in writes if at in expected}
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    assert len(jumps) == len(expected) > 0
    for at, data in jumps.items():
        (one,) = decoder.disasm(data, at)
        assert (one.mnemonic, int(one.op_str, 16)) == ("jmp", expected[at])
    flags = [(at, data) for at, data in writes if at not in expected]
    assert len(flags) == len(expected)
    assert all(data[0] & BOOT and data[0] & ~BOOT == before[at] for at, data in flags)
    switch(file, name, on=False)
    after = file.memory.written
    assert {at: after[at] for at in before} == before
    for at, data in jumps.items():
        assert file.memory.read(at, len(data)) == file.elf.read(at, len(data))


def test_a_key_that_the_kernel_turns_on_meanwhile_keeps_its_jumps(file: KernelFile) -> None:
    writes = switch(file, "sched_switch", on=True)
    users(file, "sched_switch", 1)  # and no site is written, since all are marked
    undone = switch(file, "sched_switch", on=False)
    sites = labels(file, key_of(file, "sched_switch"))
    assert not [at for at, _ in undone if at in sites]
    assert all(file.memory.read(at, len(d)) == d for at, d in writes if at in sites)
    assert not any(d[0] & BOOT for _, d in undone)


def test_a_key_that_was_on_and_is_turned_off_meanwhile_gets_the_kernels_nops(
    file: KernelFile,
) -> None:
    users(file, "sched_wakeup", 1)
    key = key_of(file, "sched_wakeup")
    original = {s.address: file.memory.read(s.address, s.size) for s in file.keys.sites(key)}
    file.memory.write([
        (s.address, file.arch.label_jump(s.address, s.target, s.size)) for s in file.keys.sites(key)
    ])  # fmt: skip
    writes = switch(file, "sched_wakeup", on=True)
    assert not [at for at, _ in writes if at in original]
    users(file, "sched_wakeup", 0)
    switch(file, "sched_wakeup", on=False)
    for at, nop in original.items():
        assert file.memory.read(at, len(nop)) == nop


def test_while_the_kernel_changes_keys_nothing_is_written(file: KernelFile) -> None:
    lock = file.elf.address("jump_label_mutex")
    assert lock is not None
    owner = lock + file.btf.offset("mutex", "owner")
    file.memory.write([(owner, b"\1" + bytes(7))])
    assert file.keys.switched([key_of(file, "kmalloc")], on=True) is None
    file.memory.write([(owner, bytes(8))])
    assert file.keys.switched([key_of(file, "kmalloc")], on=True)


@pytest.mark.parametrize("count", [0, 1])
def test_a_site_that_is_not_as_its_count_says_is_refused(file: KernelFile, count: int) -> None:
    key = key_of(file, "kmalloc")
    site = file.keys.sites(key)[0]
    users(file, "kmalloc", count)
    # Another tool's breakpoint, or a nop although the key is in use.
    file.memory.write([(site.address, b"\xcc")] if not count else [])
    with pytest.raises(KinstError):
        file.keys.switched([key], on=True)


def test_a_site_whose_module_is_gone_is_left_alone(file: KernelFile) -> None:
    writes = switch(file, "sched_switch", on=True)
    gone = next(at for at, _ in writes if at in labels(file, key_of(file, "sched_switch")))
    file.memory.write([(gone, b"\x90\x90\x90\x90\x90")])
    undone = {at for at, _ in switch(file, "sched_switch", on=False)}
    assert gone not in undone and len(undone) == len(writes) - 2


def test_no_key_means_no_write(file: KernelFile) -> None:
    assert file.keys.switched((), on=True) == []


def test_what_a_killed_kinst_has_left_is_undone_by_the_next(file: KernelFile) -> None:
    before = dict(file.memory.written)
    left = switch(file, "sched_switch", on=True)
    later = KernelFile("amd64", file.elf.path)
    later.memory.written = file.memory.written
    assert [at for at, _ in switch(later, "sched_switch", on=True)] == [
        at for at, _ in left if at in before
    ]
    switch(later, "sched_switch", on=False)
    assert {at: later.memory.written[at] for at in before} == before
    sites = later.keys.sites(key_of(later, "sched_switch"))
    assert all(later.memory.read(s.address, s.size) in later.arch.label_nops for s in sites)
