"""Samples of CPUs: a function that runs clauses with the registers that an interrupt has saved."""

from __future__ import annotations

import struct
from typing import ClassVar

from kinst.core import layout as lay
from tests.codegen.codegen_rig import (
    FRAME,
    REGISTERS,
    SLOTS,
    STACK,
    TargetRig,
    builtin,
    program,
    reg,
    trace,
)

PC_AT = 0x80  # offset in the saved registers of the rig's machine
FIRST, LAST = REGISTERS[0], REGISTERS[3]


class Sampled(TargetRig):
    saved_registers: ClassVar[tuple[tuple[str, int], ...]] = ((FIRST.d_name, 8), (LAST.d_name, 24))

    def sample(self, place: int) -> list[int]:
        """Return the values in the single record of a sample, taken with the CPU at this
        address."""
        saved = bytearray(0x100)
        for offset, value in ((8, 0x1111), (24, 0x3333), (PC_AT, place)):
            saved[offset : offset + 8] = struct.pack("<Q", value)
        self.emulator.mem_write(STACK, b"\xee" * 0x3000)  # the frame is made there
        self.emulator.mem_write(FRAME, bytes(saved))
        (function,) = self.code.samplers
        self.call(function, FRAME)
        (record,) = self.records(0)
        self.consume(0)
        return [int.from_bytes(self.fields(record, n)[0], "little") for n in range(4)]


def test_registers_and_the_place_are_told_as_they_were() -> None:
    actions = [reg(0), reg(3), builtin("arg0"), builtin("arg1")]
    rig = Sampled(
        program([trace(one) for one in actions]), {7: (0,)},
        arguments=[(lay.ARGUMENT_SLOT, SLOTS), (lay.ARGUMENT_SLOT, SLOTS + 1)],
    )  # fmt: skip
    kernel, user = 0xFFFF_FFFF_8123_4567, 0x7FFF_1234_5678
    assert rig.sample(kernel) == [0x1111, 0x3333, kernel, 0]
    assert rig.sample(user) == [0x1111, 0x3333, 0, user]
    for place in (1 << 63, (1 << 64) - 1):
        assert rig.sample(place) == [0x1111, 0x3333, place, 0]
    for place in (0, (1 << 63) - 1):
        assert rig.sample(place) == [0x1111, 0x3333, 0, place]


def test_registers_that_no_interrupt_saves_are_0() -> None:
    actions = [trace(reg(number)) for number in (1, 0, 5, 9)]
    assert Sampled(program(actions), {7: (0,)}).sample(0x1234) == [0, 0x1111, 0, 0]


def test_nothing_is_sampled_after_the_end() -> None:
    rig = Sampled(program([trace(builtin("arg0"))]), {7: (0,)})
    rig.write(lay.HEADER_ACTIVE, bytes(8))
    rig.call(rig.code.samplers[0], FRAME)
    assert rig.records(0) == []
