"""A guardian that restores a machine when a CPU has met a breakpoint and not yet come to the hook:
the hook stays until it has."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kinst import isa as instruction_sets
from kinst.core.errors import TargetError
from kinst.core.system import HOOK_BYTES, TrapPath
from kinst.machines.attach.changes import changed_bytes
from kinst.machines.attach.guardian import Guardian

TEXT, STACK = 0xFFFF_8000_0000_1000, 0xFFFF_8000_0010_0F80  # the stack ends with its page
HOOK, SITE = TEXT + 0x100, TEXT + 0x40


class Machine:
    """A machine as the guardian sees it (stub, memory), with a CPU that has trapped at SITE.

    Args:
        saved: register with the trap's saved program counter; "" if it is on the stack.
        turns: how often the machine must run until the CPU is at the hook.
    """

    cpus = 1

    def __init__(self, saved: str, turns: int, value: int, mode: dict[str, int]) -> None:
        self.text = bytearray(0x1000)
        self.saved, self.turns, self.value, self.mode = saved, turns, value, mode
        self.story: list[str] = []

    def read(self, address: int, size: int) -> bytes:
        if address >= STACK:
            if address + size > STACK + 0x80:
                raise TargetError("nothing is mapped there")
            stack = bytearray(0x80)
            if not self.saved and self.turns > 0:
                stack[0x28:0x30] = self.value.to_bytes(8, "little")
            return bytes(stack[address - STACK :][:size])
        return bytes(self.text[address - TEXT :][:size])

    def physical_writes(self, writes: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
        return writes

    def write_memory(self, writes: Sequence[tuple[int, bytes]]) -> None:
        for address, data in writes:
            at = address - TEXT
            self.text[at : at + len(data)] = data
            self.story.append("hook" if address >= HOOK else "site")

    def registers(self, cpu: int) -> dict[str, int]:
        trapped = {self.saved: self.value} if self.saved and self.turns > 0 else {}
        return {**self.mode, **trapped, "rsp": STACK, "sp": STACK, "SP_EL0": STACK}

    def resume(self) -> None:
        self.story.append("runs")
        self.turns -= 1

    def stop(self) -> None:
        pass


# The ISA, where its trap saves the program counter, how far after the site, a register of
# supervisor mode.
KINDS: list[tuple[str, str, int, dict[str, int]]] = [
    ("amd64", "", 1, {"cs": 0x10}),
    ("arm64", "ELR_EL1", 0, {"cpsr": 5}),
    ("riscv64", "sepc", 0, {"priv": 1}),
]


@pytest.mark.parametrize(("name", "saved", "delta", "mode"), KINDS)
@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize("already", [False, True])
def test_the_hook_stays_until_it_has_passed(
    name: str, saved: str, delta: int, mode: dict[str, int], turns: int, already: bool
) -> None:
    """Test that the hook stays until the CPU has passed it.

    Args:
        already: kinst has removed the breakpoint itself, before it was killed.
    """
    isa = instruction_sets.load(name)
    machine = Machine(saved, turns, SITE + delta, mode)
    absent = cast(Any, None)
    guardian = Guardian(absent, absent, isa, absent, absent)
    state = cast(Any, guardian)
    state._memory = state._rsp = state._debugger = machine
    state._allocator = SimpleNamespace(traps=TrapPath((HOOK - 4,), delta), tracer=None)

    def write(address: int, data: bytes) -> None:
        state._changes.note_text(*changed_bytes([(address, data)], machine.read))
        machine.text[address - TEXT : address - TEXT + len(data)] = data
        state._changes.note_written()

    write(HOOK, b"\xe9abcd")
    write(SITE, isa.breakpoint)
    if already:
        write(SITE, bytes(len(isa.breakpoint)))
    assert HOOK + 5 <= HOOK - 4 + HOOK_BYTES
    state._restore_text()
    assert machine.story == [*["site"] * (not already), *["runs"] * turns, "hook"]
    assert bytes(machine.text) == bytes(len(machine.text))
    machine.story.clear()
    state._restore_text()
    assert not machine.story, "nothing is left to undo"


MARK, WORD = TEXT + 0x800, TEXT + 0xF00  # in data: a record of ftrace's, and its list of users


@pytest.mark.parametrize("in_use", [False, True])
def test_marks_stay_while_the_kernels_own_tracer_is_in_use(in_use: bool) -> None:
    isa = instruction_sets.load("amd64")
    machine = Machine("", 0, 0, {"cs": 0x10})
    machine.is_code = lambda address: False  # type: ignore[attr-defined]
    absent = cast(Any, None)
    state = cast(Any, Guardian(absent, absent, isa, absent, absent))
    state._memory = state._rsp = state._debugger = machine
    state._allocator = SimpleNamespace(traps=TrapPath((), 1), tracer=(WORD, 17))
    machine.text[WORD - TEXT] = 18 if in_use else 17
    state._changes.note_text(*changed_bytes([(MARK, b"\x02")], machine.read))
    machine.text[MARK - TEXT] = 2
    state._restore_text()
    assert machine.text[MARK - TEXT] == (2 if in_use else 0)
