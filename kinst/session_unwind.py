"""stack() of stop-planted probes: unwound here, by the kernel's own tables."""

from __future__ import annotations

from collections.abc import Mapping

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.target import Target
from kinst.targets.linux import Linux

MASK = (1 << 64) - 1
MOST = 512  # frames


def unwind(
    isa: Isa, personality: Linux, target: Target, registers: Mapping[int, int]
) -> tuple[int, ...]:
    """The program counter and the return addresses of a stopped CPU, innermost first.

    registers: by frame slot.  It ends where the tables have no rule: at the frames that
    interrupts and system calls make.
    """
    names = {r.d_name: registers[r.slot] for r in isa.registers if r.slot in registers}
    pc = registers[isa.pc_slot]
    frames = [pc]
    look = pc
    while len(frames) < MOST:
        rule = personality.frame_rule(look)
        if rule is None or rule[0] not in names:
            break
        register, offset, back = rule
        cfa = names[register] + offset & MASK
        saved = personality.saved_frame_pointer(look)
        try:
            pc = _word(target, cfa + back)
            if saved is not None:
                names[FRAME_POINTER] = _word(target, cfa + saved)
        except TargetError:
            break
        if personality.function_at(pc - 1) is None:
            break
        # The caller's registers: of the others nothing is known any more.
        names = {STACK_POINTER: cfa, FRAME_POINTER: names.get(FRAME_POINTER, 0)}
        frames.append(pc)
        look = pc - 1  # the call: what follows it may be another function's
    return tuple(frames)


STACK_POINTER, FRAME_POINTER = "R_RSP", "R_RBP"


def _word(target: Target, address: int) -> int:
    return int.from_bytes(target.read(address & MASK, 8), "little")
