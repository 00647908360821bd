"""stack() of stop-planted probes: unwound here, as the kernel's own unwinder does it: by its
tables, or by frame pointers where it has none."""

from __future__ import annotations

from collections.abc import Mapping

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.target import Target
from kinst.systems.linux.system import Linux
from kinst.systems.linux.unwind import FrameChain

MASK = (1 << 64) - 1
MOST = 512  # frames
THREAD_STACK = 16 << 10  # bytes, THREAD_SIZE of the kernels that are unwound by frame pointers


def unwind(
    isa: Isa, personality: Linux, target: Target, registers: Mapping[int, int]
) -> tuple[int, ...]:
    """The program counter and the return addresses of a stopped CPU, innermost first.

    registers: by frame slot.  It ends where the tables have no rule: at the frames that
    interrupts and system calls make.
    """
    names = {r.d_name: registers[r.slot] for r in isa.registers if r.slot in registers}
    chain = personality.frame_chain()
    if chain is not None:
        return _by_frames(chain, personality, target, names)
    return _by_rules(personality, target, names, registers[isa.pc_slot])


def _by_rules(
    personality: Linux, target: Target, names: dict[str, int], pc: int
) -> tuple[int, ...]:
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


def _by_frames(
    chain: FrameChain, personality: Linux, target: Target, names: Mapping[str, int]
) -> tuple[int, ...]:
    """By frame records, as walk_stackframe() of riscv and unwind_next() of arm64 do."""
    frames = [names[chain.pc]]
    stack, frame = names[chain.stack], names[chain.frame]

    def valid(address: int) -> bool:
        """Whether a frame that begins at `stack` may end there."""
        size = -chain.next_at if chain.next_at < 0 else 0
        top = stack + THREAD_STACK - 1 & -THREAD_STACK if size else MASK
        return not address & 7 and stack + size <= address <= top

    while len(frames) < MOST and valid(frame):
        try:
            caller, back = (_word(target, frame + at) for at in (chain.next_at, chain.return_at))
        except TargetError:
            break
        stack = frame
        if chain.lone_link and len(frames) == 1 and valid(back):
            caller, back = back, names[chain.lone_link]
        back |= chain.high if back >> 55 & 1 else 0
        if personality.function_at(back - 1) is None:
            break
        frames.append(back)
        frame = caller
    return tuple(frames)


def _word(target: Target, address: int) -> int:
    return int.from_bytes(target.read(address & MASK, 8), "little")
