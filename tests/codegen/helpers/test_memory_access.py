"""copyin(), copyinstr() and copyout() in the traced kernel: whole, in pieces, and through the
stack.

The kernel's functions panic if its end of a copy is not memory that may be copied from or to
(mm/usercopy.c: the stack of the current process, at and above its stack pointer, always is).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import unicorn
from unicorn import x86_const as x86

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.helpers.memory_access import BUFFER
from kinst.core import layout as lay
from kinst.core.system import UserMemory
from tests.codegen.codegen_rig import STACK, TargetRig, read_memory
from tests.codegen.subroutines_rig import compiled

READ, WRITE = 0x7100000, 0x7200000
USER = 0x400000
STACK_END = STACK + 0x4000
ERROR = 14
SIZES = [1, 7, 8, 9, 127, BUFFER, BUFFER + 1, 1000]
_WORDS = (x86.UC_X86_REG_RDI, x86.UC_X86_REG_RSI, x86.UC_X86_REG_RDX)


@dataclass
class UserRig(TargetRig):
    """A kernel whose current process has `user` at USER."""

    user: bytes = b""

    def target_machine(self) -> CodeMachine:
        return replace(super().target_machine(), user=UserMemory(READ, WRITE))

    def start(self) -> None:
        super().start()
        self.written: dict[int, bytes] = {}
        self.copies: list[tuple[int, int]] = []  # the kernel's end and the size
        for function, hook in ((READ, self._read_user), (WRITE, self._write_user)):
            self.emulator.mem_map(function, 4096)
            self.emulator.mem_write(function, b"\xc3")
            self.emulator.hook_add(unicorn.UC_HOOK_CODE, hook, begin=function, end=function)

    def _check(self, kernel: int, size: int) -> None:
        stack = self.emulator.reg_read(x86.UC_X86_REG_RSP)
        assert stack <= kernel and kernel + size <= STACK_END, "the kernel would panic here"
        # A kernel with frame pointers wants it in one frame (x86: arch_within_stack_frames()).
        frame = self.emulator.reg_read(x86.UC_X86_REG_RBP)
        assert kernel + size <= frame <= STACK_END - 16, "and here"
        self.copies.append((kernel, size))

    def _read_user(self, emulator: unicorn.Uc, *_: Any) -> None:
        dst, src, size = (emulator.reg_read(word) for word in _WORDS)
        self._check(dst, size)
        data = read_memory({USER: self.user}, src, size)
        if data is not None:
            emulator.mem_write(dst, data)
        emulator.reg_write(x86.UC_X86_REG_RAX, 0 if data is not None else -ERROR)

    def _write_user(self, emulator: unicorn.Uc, *_: Any) -> None:
        dst, src, size = (emulator.reg_read(word) for word in _WORDS)
        self._check(src, size)
        good = read_memory({USER: self.user}, dst, size) is not None
        if good:
            self.written[dst] = bytes(emulator.mem_read(src, size))
        emulator.reg_write(x86.UC_X86_REG_RAX, 0 if good else -ERROR)


def fired(body: str, user: bytes) -> UserRig:
    program = compiled(f"kinst::f:0 {{ {body} }} dtrace:::ERROR {{ trace(arg4); trace(arg5); }}")
    rig = UserRig(program, {7: (0,)}, error=(1,), strsize=1024, user=user)
    rig.fire(7)
    return rig


def fields(rig: UserRig, clause: int = 0) -> list[bytes]:
    (record,) = rig.records(rig.slot)
    assert record.clause == clause
    return [rig.fields(record, action)[0] for action in range(2 if clause else 1)]


@pytest.mark.parametrize("size", SIZES)
def test_copyin(size: int) -> None:
    data = bytes(k % 251 for k in range(size))
    rig = fired(f"tracemem(copyin({USER}, {size}), {size});", data)
    assert fields(rig) == [data]
    assert [length for _, length in rig.copies[:-1]] == [BUFFER] * ((size - 1) // BUFFER)


@pytest.mark.parametrize("size", SIZES)
def test_copyout(size: int) -> None:
    data = bytes(k % 251 for k in range(size))
    there = f"this->p = copyin({USER}, {size}); copyout(this->p, {USER + size}, {size}); trace(1);"
    rig = fired(there, data + bytes(size))
    assert b"".join(part for _, part in sorted(rig.written.items())) == data
    assert min(rig.written) == USER + size


@pytest.mark.parametrize("size", SIZES)
def test_strings(size: int) -> None:
    """copyinstr() reads no byte after the piece of memory that has the NUL."""
    data = b"x" * size + b"\0"
    rig = fired(f"trace(copyinstr({USER}));", data.ljust(-(-len(data) // 64) * 64, b"!"))
    assert fields(rig)[0].split(b"\0")[0] == data[:-1]
    rig = fired(f'copyoutstr("{"y" * 20}", {USER}, {size}); trace(1);', data)
    (part,) = rig.written.values()
    assert part == (b"y" * 20 + b"\0")[:size]


def test_text_of_what_was_copied_ends_with_it() -> None:
    """Copied text ends with its own NUL, whatever the clause's memory held before; also if no byte
    is left for the NUL."""
    rig = UserRig(
        compiled("kinst::f:0 { trace(stringof(copyin(regs[R_0], regs[R_1]))); }"),
        {7: (0,)}, strsize=1024, user=b"x" * lay.ARENA,
    )  # fmt: skip
    for size in (200, 5, 8, 16, lay.ARENA, 3):
        rig.consume(rig.slot)
        rig.fire(7, {0: USER, 1: size})
        assert fields(rig)[0].split(b"\0")[0] == b"x" * min(size, 1023)


def test_what_is_allocated_begins_on_a_multiple_of_8() -> None:
    for size in range(1, 18):
        text = f"this->p = copyin({USER}, {size}); this->q = alloca(1);"
        rig = fired(f"{text} trace((long)this->p & 7); trace((long)alloca(8) & 7);", b"x" * 64)
        (record,) = rig.records(rig.slot)
        assert [rig.fields(record, k)[0] for k in (2, 3)] == [bytes(8)] * 2


@pytest.mark.parametrize("size", range(1, 18))
def test_text_that_was_copied_takes_no_more_than_its_nul(size: int) -> None:
    """The rest of a clause's memory holds two copies and not a byte more."""
    each = (size + 1 + 7) // 8 * 8
    last = (size + 7) // 8 * 8  # without room for a NUL there is none
    for left, fits in ((each + last, True), (each + last - 8, False)):
        body = f"this->p = alloca({lay.ARENA - left});" + f"copyin({USER}, {size});" * 2
        rig = fired(f"{body} trace(1);", b"x" * 64)
        (record,) = rig.records(rig.slot)
        assert record.clause == (0 if fits else 1)


def test_what_is_allocated_next_does_not_go_on_with_the_text() -> None:
    user = b"x" * 64
    for size in (7, 8, 9, 16, 24):
        text = f"this->p = (char *)copyin({USER}, {size}); this->q = (char *)copyin({USER}, 16);"
        rig = fired(f"{text} trace(stringof(this->p));", user)
        (record,) = rig.records(rig.slot)
        assert rig.fields(record, 2)[0].split(b"\0")[0] == b"x" * size


@pytest.mark.parametrize("missing", [1, BUFFER, 3 * BUFFER + 5])
def test_a_bad_address_anywhere_faults(missing: int) -> None:
    size = 4 * BUFFER
    user = bytes(size - missing)
    for body in (
        f"trace(*(char *)copyin({USER}, {size}));",
        f"copyout((void *)alloca({size}), {USER}, {size});",
    ):
        rig = fired(body, user)
        kind, value = fields(rig, 1)
        assert int.from_bytes(kind, "little") == lay.FAULT_BADADDR
        assert int.from_bytes(value, "little") == USER
