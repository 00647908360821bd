"""Subroutines that read the kernel's data and move bytes.

Chains of parents and pieces of memory are drawn at random; expected results are computed here.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.subroutines.kernel_objects import ANCESTORS
from kinst.core import layout as lay
from kinst.core.errors import KinstError
from tests.codegen.codegen_rig import (
    CURRENT_AT,
    GS_BASE,
    PID,
    PPID,
    TASK_AT,
    HostRig,
    Rig,
    TargetRig,
)
from tests.codegen.helpers.test_memory_access import USER, UserRig, fired
from tests.codegen.subroutines_rig import A, B, check, compiled, rigs, run

TASK = GS_BASE + TASK_AT
PARENT, ID = 0x18, 0x10
COUNTER = GS_BASE + 0xF00


def test_memstr() -> None:
    """NUL bytes are replaced by the given byte, and the last byte is the NUL."""
    rng = random.Random(2)
    for _ in range(60):
        data = bytes(rng.choice(b"ab\0\0z") for _ in range(rng.randrange(1, 90)))
        size, byte = rng.randrange(1, len(data) + 1), rng.choice(b"_.")
        most = min(size, 64) - 1
        expected = data[:most].replace(b"\0", bytes([byte]))
        check("trace(memstr(P, J, I));", [expected], data, b"", size, byte)
    for machine in rigs("trace(memstr(P, J, I) == NULL);"):
        assert run(machine, b"abc", b"", 0, 46) == [1]
    check("trace(memstr(P + 8192, 46, I) == NULL);", [1], b"", b"", 0)  # where memory ends
    check("trace(memstr((char *)9, 46, I));", (lay.FAULT_BADADDR, 9), b"", b"", 5)


def test_numbers_of_devices() -> None:
    """12 bits and 20 (include/linux/kdev_t.h)."""
    rng = random.Random(3)
    for _ in range(20):
        major, minor = rng.getrandbits(12), rng.getrandbits(20)
        check("trace(getmajor(K)); trace(getminor(K));", [major, minor], b"", b"", 0, 0,
              major << 20 | minor)  # fmt: skip


def test_memref() -> None:
    body = "this->m = (uint64_t *)memref(P + 3, I); trace(this->m[0]); trace(this->m[1]);"
    for machine in rigs(body):
        assert run(machine, b"x", b"", 77) == [A + 3, 77]


class FamilyRig(TargetRig):
    def target_machine(self) -> CodeMachine:
        return replace(super().target_machine(), parents=(PARENT, ID))


def family(ids: list[int], last: int | None) -> dict[int, bytes]:
    """Return tasks, each one's parent the next.

    Args:
        last: parent of the last one; None: itself.
    """
    at = [TASK, *(0xFFFF_8880_0100_0000 + 0x100 * k for k in range(1, len(ids)))]
    found = {}
    for k, (here, number) in enumerate(zip(at, ids, strict=True)):
        end = here if last is None else last
        parent = at[k + 1] if k + 1 < len(ids) else end
        found[here] = bytes(ID) + struct.pack("<IIQ", number, 0xFFFFFFFF, parent)
    return found


@pytest.fixture(scope="module")
def relatives() -> FamilyRig:
    program = compiled("kinst::f:0 { trace(progenyof((int)regs[R_1])); }")
    return FamilyRig(program, {7: (0,)}, strsize=64)


def is_progeny(rig: Rig, number: int) -> int:
    rig.consume(rig.slot)
    rig.fire(7, {1: number})
    (record,) = rig.records(rig.slot)
    return int.from_bytes(rig.fields(record)[0], "little")


def test_progeny(relatives: FamilyRig) -> None:
    rng = random.Random(4)
    for _ in range(25):
        ids = rng.sample(range(1, 1 << 31), rng.randrange(1, 9))
        relatives.memory = family(ids, rng.choice((None, 0, 0x7777)))
        for number in ids:
            assert is_progeny(relatives, number) == 1
        assert is_progeny(relatives, 1 << 31) == 0 and is_progeny(relatives, 0) == 0


def test_progeny_ends(relatives: FamilyRig) -> None:
    """The search ends after so many generations, and immediately if a task cannot be read."""
    ids = list(range(1, ANCESTORS + 5))
    relatives.memory = family(ids, None)
    relatives.reads.clear()
    assert is_progeny(relatives, ids[-1]) == 0
    assert len(relatives.reads) == 2 * ANCESTORS
    assert is_progeny(relatives, ids[ANCESTORS - 1]) == 1
    relatives.memory = {}
    assert is_progeny(relatives, 5) == 0


def test_progeny_where_parents_are_not_known() -> None:
    text = "kinst::f:0 { trace(progenyof((int)regs[R_1])); }"
    with pytest.raises(KinstError, match="does not know where this kernel keeps the parent"):
        TargetRig(compiled(text), {7: (0,)}, strsize=64)
    host = HostRig(compiled(text), {7: (0,)}, strsize=64)
    answers = [is_progeny(host, number) for number in (PID, PPID, PID + 1, 0)]
    assert answers == [1, 1, 0, 0]


def test_progeny_of_a_process_that_runs_into_a_stop() -> None:
    """The host has the current process's ids, and reads its ancestors."""

    class Family(HostRig):
        def host_machine(self) -> CodeMachine:
            return replace(super().host_machine(), parents=(PARENT, ID))

    ids = [77, 1 << 30, 5]
    text = "kinst::f:0 { trace(progenyof((int)regs[R_1])); }"
    host = Family(compiled(text), {7: (0,)}, strsize=64, memory=family(ids, 0))
    for number, expected in ((PID, 1), (PPID, 1), *((one, 1) for one in ids), (6, 0), (0, 0)):
        assert is_progeny(host, number) == expected


@pytest.mark.parametrize("size", [1, 8, 64, 300])
def test_copyinto(size: int) -> None:
    data = bytes(1 + k % 251 for k in range(size))
    marks = b"".join(b"%04d" % k for k in range(100))[: size + 16]
    text = (
        f"this->p = (char *)alloca({size + 16}); copyinto({USER + size}, {size + 16}, this->p);"
        f"copyinto({USER}, {size}, this->p + 8); tracemem(this->p, {size + 16});"
    )
    rig = fired(text, data + marks)
    (record,) = rig.records(rig.slot)
    assert record.clause == 0 and marks[:8] + data + marks[-8:] in record.raw
    room = (size + 7) & -8
    text = f"this->p = (char *)alloca({size}); copyinto({USER}, {room + 1}, this->p); trace(1);"
    rig = fired(text, data.ljust(room + 1, b"x"))
    (record,) = rig.records(rig.slot)
    assert record.clause == 1, "no byte behind the allocation"


@pytest.mark.parametrize("most", [0, 1, 5, 62, 63, 64, 100])
def test_copyinstr_of_at_most(most: int) -> None:
    data = b"x" * 80 + b"\0"
    program = compiled(f"kinst::f:0 {{ trace(copyinstr({USER}, {most})); }}")
    rig = UserRig(program, {7: (0,)}, strsize=64, user=data.ljust(128, b"\0"))
    rig.fire(7)
    (record,) = rig.records(rig.slot)
    assert rig.fields(record)[0].split(b"\0")[0] == b"x" * min(most, 63)


def test_copyout_takes_no_more_than_it_is_told() -> None:
    text = "this->p = (char *)alloca(8); *this->p = 'a'; this->p[1] = 'b';"
    rig = fired(f"{text} copyout(this->p, {USER}, 2); trace(1);", bytes(8))
    assert rig.written == {USER: b"ab"}


def test_chill_is_bounded() -> None:
    for machine in rigs("chill(K); trace(1);"):
        assert run(machine, b"", b"", 0, 0, 0) == [1]
        assert run(machine, b"", b"", 0, 0, 500_000_001) == (lay.FAULT_ILLOP, 0)
        assert run(machine, b"", b"", 0, 0, -1) == (lay.FAULT_ILLOP, 0)


class Counting(TargetRig):
    """A kernel whose cycle counter is incremented at each read; 3 ns each (CLOCK)."""

    timestamp_asm = f"movabsq $${COUNTER}, %rax\n\tincq (%rax)\n\tmovq (%rax), %rax"

    def spent(self, ns: int) -> int:
        """Return how often a clause reads the counter that waits for so long."""
        before = self.emulator.mem_read(COUNTER, 8)
        self.fire(7, {4: ns})
        assert list(self.table(0, 0).values()) == [(1,)]
        after = self.emulator.mem_read(COUNTER, 8)
        return int.from_bytes(after, "little") - int.from_bytes(before, "little")


def test_chill_takes_its_time() -> None:
    program = compiled("kinst::f:0 { chill((int64_t)regs[R_4]); @ = count(); }")
    for ns in (0, 1, 3, 300, 3000):
        cycles = Counting(program, {7: (0,)}, strsize=64).spent(ns)
        # The first read is the start, the last one is at the end or after it.
        assert (cycles - 1) * 3 >= ns - 2 and (cycles - 2) * 3 <= ns

    class Without(Counting):
        timestamp_asm = ""

    assert Without(program, {7: (0,)}, strsize=64).spent(1000) == 0

    class Timeless(Counting):
        def target_machine(self) -> CodeMachine:
            return replace(super().target_machine(), clock=None)

    assert Timeless(program, {7: (0,)}, strsize=64).spent(1000) == 0


def test_where_the_current_thread_is() -> None:
    """The other tests depend on this address."""
    program = compiled("kinst::f:0 { trace((uint64_t)curthread); }")
    rig = TargetRig(program, {7: (0,)}, strsize=64)
    rig.emulator.mem_write(GS_BASE + CURRENT_AT, struct.pack("<Q", B))
    rig.fire(7)
    (record,) = rig.records(rig.slot)
    assert int.from_bytes(rig.fields(record)[0], "little") == B
