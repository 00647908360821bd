"""A CPU that has met a breakpoint when the trace ends, and not yet come to the hook: the hook
stays until it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kinst import isa as instruction_sets
from kinst.core.errors import TargetError
from kinst.core.machine import Abilities
from kinst.patch.patches import Patch, patches_of
from kinst.patch.plan import Plan
from kinst.session.apply import PlantedStopped

TEXT, STACK = 0xFFFF_8000_0000_1000, 0xFFFF_8000_0010_0F80  # the stack ends with its page
HOOK, SITE = TEXT + 0x100, TEXT + 0x40
OLD, NEW = b"\x90" * 4, b"\xcc" * 4


@dataclass
class Half:
    """A machine whose single CPU has trapped at SITE.

    It comes to the hook after it has been run `turns` times.

    Args:
        saved: register with the trap's saved program counter; "" if it is on the stack.
    """

    saved: str
    turns: int
    value: int
    user: Mapping[str, int]

    def __post_init__(self) -> None:
        self.text = bytearray(OLD * 0x100)
        self.cpus, self.abilities, self.stands = 1, Abilities(), True
        self.story: list[str] = []

    def stop(self) -> None:
        self.stands = True

    def resume(self) -> None:
        assert self.text[SITE - TEXT :][:4] == OLD, "it would trap again"
        self.stands = False
        self.story.append("runs")
        self.turns -= 1

    def registers(self, cpu: int) -> Mapping[str, int]:
        assert self.stands
        trapped = {self.saved: self.value} if self.saved and self.turns > 0 else {}
        return {**self.user, **trapped, "rsp": STACK, "sp": STACK, "SP_EL0": STACK}

    def read(self, address: int, size: int) -> bytes:
        if TEXT <= address < TEXT + len(self.text):
            return bytes(self.text[address - TEXT :][:size])
        end = (STACK & -4096) + 4096
        if not address >= STACK or address + size > end:
            raise TargetError("nothing is mapped there")
        stack = bytearray(end - STACK)
        if not self.saved and self.turns > 0:
            stack[0x28:0x30] = self.value.to_bytes(8, "little")
        return bytes(stack[address - STACK :][:size])

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        for address, data in writes:
            at = address - TEXT
            before = bytes(self.text)
            self.text[at : at + len(data)] = data
            for where, name in ((SITE - TEXT, "site"), (HOOK - TEXT, "hook")):
                if before[where:][:4] != OLD == self.text[where:][:4]:
                    self.story.append(name)

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> None:
        return None


# The ISA, where its trap saves the program counter, how far after the site, a register of
# supervisor mode.
KINDS: list[tuple[str, str, int, dict[str, int]]] = [
    ("amd64", "", 1, {"cs": 0x10}),
    ("arm64", "ELR_EL1", 0, {"cpsr": 5}),
    ("riscv64", "sepc", 0, {"priv": 1}),
]


@pytest.mark.parametrize(("isa", "saved", "delta", "mode"), KINDS)
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_the_hook_stays_until_it_has_passed(
    isa: str, saved: str, delta: int, mode: dict[str, int], turns: int
) -> None:
    machine = Half(saved, turns, SITE + delta, mode)
    started = SimpleNamespace(
        isa=instruction_sets.load(isa),
        target=machine,
        system=SimpleNamespace(claims=lambda _: (), function_at=lambda _: None),
        text=(TEXT, TEXT + 0x400),
        facts=SimpleNamespace(trap_pc_delta=delta, only_counts=False),
    )
    plan = SimpleNamespace(
        hooks=Plan(patches_of([Patch(HOOK, NEW, OLD)])),
        sites=Plan(patches_of([Patch(SITE, NEW, OLD)])),
        placement=SimpleNamespace(planted=(), stopped=()),
        ended=(),
    )
    planted = PlantedStopped(cast(Any, plan), cast(Any, started))
    planted.plant()
    assert machine.text[HOOK - TEXT :][:4] == machine.text[SITE - TEXT :][:4] == NEW
    assert "as before" in planted.unplant()
    assert machine.story == ["site", *["runs"] * turns, "hook"]
