"""Exclusive sequences that can run again: conditions under which an instruction between a
load-exclusive and its store-exclusive, or the store-exclusive itself, can be planted.

A probe's work there clears the mark that the load-exclusive made. But a sequence may always be
started again, since it changes nothing but registers until the store is done. So the trampoline of
such an instruction first does the probe's work. Then it runs copies of the instructions from the
load-exclusive up to the site, which make a new mark. Then it runs the displaced instruction, and
goes back:

    work; copy of ldxr; copies of the instructions between; displaced instruction; branch back

The code after the trampoline must find the state that it would find if the load-exclusive had run
only now. This is so under these conditions (refusal()):

- the only path to the instruction leads directly from the load-exclusive: no branch of the function
  enters between (a compiled asm statement has one entry);
- the code that runs again is the load-exclusive, arithmetic on general registers, and conditional
  branches out: no memory, no system register, no call;
- this code changes no register and no flag that it has read before, so it finds its inputs again;
- after the first branch in this code, no instruction of this code writes a register. The second
  run reads newer memory, and may take a branch that the first run did not take. Then the registers
  are what they would be if the first run had taken this branch.

If only the second run takes a branch, the probe has fired although its instruction does not run.
This is as if the store had failed: the code does not use the values that the probe has seen in
regs[].

Source: Arm Architecture Reference Manual (DDI 0487), B2.9 "Synchronization and semaphores" for the
sequences, C4.1 for the encodings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.displaced import Refused, Relocated, refuses_out_of_reach
from kinst.isa.arm64 import encode as e
from kinst.isa.arm64 import parse as p
from kinst.isa.arm64 import relocate

_APART = "no straight way leads from the one to it"
_ENTERED = "a branch goes in between"
_NOT_PURE = "what comes before it is more than arithmetic"
_INPUTS = "what comes before it changes what it reads"
_LEAVES = "what comes before it writes a register where it may already have left"
_STACK, _FLAGS = 32, 33  # beside 0 to 30; 31 is the zero register

_PAIR = 1 << 21  # of a load-exclusive
_SETS_FLAGS = 1 << 29
_AND_FLAGS, _MOVE_KEEP = 3, 3  # opc of ands and of movk


@dataclass(frozen=True, slots=True)
class Effect:
    """Registers (0 to 30, _STACK, _FLAGS) that an instruction reads and writes."""

    reads: frozenset[int]
    writes: frozenset[int]


def _effect(reads: Collection[int], writes: Collection[int]) -> Effect:
    return Effect(frozenset(reads) - {e.ZR}, frozenset(writes) - {e.ZR})


def _or_stack(register: int) -> int:
    return _STACK if register == e.SP else register


def _load_exclusive(w: int) -> Effect:
    loaded = (w & 0x1F, w >> 10 & 0x1F) if w & _PAIR else (w & 0x1F,)
    return _effect((_or_stack(w >> 5 & 0x1F),), loaded)


def _flags(sets: object) -> tuple[int, ...]:
    return (_FLAGS,) if sets else ()


def _add_immediate(w: int) -> Effect:
    to, sets = w & 0x1F, w & _SETS_FLAGS
    return _effect((_or_stack(w >> 5 & 0x1F),), (to if sets else _or_stack(to), *_flags(sets)))


def _logical_immediate(w: int) -> Effect:
    to, sets = w & 0x1F, w >> 29 & 3 == _AND_FLAGS
    return _effect((w >> 5 & 0x1F,), (to if sets else _or_stack(to), *_flags(sets)))


def _move_wide(w: int) -> Effect:
    to = w & 0x1F
    return _effect((to,) if w >> 29 & 3 == _MOVE_KEEP else (), (to,))


def _logical_registers(w: int) -> Effect:
    sets = w >> 29 & 3 == _AND_FLAGS
    return _effect((w >> 5 & 0x1F, w >> 16 & 0x1F), (w & 0x1F, *_flags(sets)))


def _add_registers(w: int) -> Effect:
    return _effect((w >> 5 & 0x1F, w >> 16 & 0x1F), (w & 0x1F, *_flags(w & _SETS_FLAGS)))


def _add_extended(w: int) -> Effect:
    immediate = _add_immediate(w)
    return _effect(immediate.reads | {w >> 16 & 0x1F}, immediate.writes)


# (mask, masked word, function that returns the effect) of arithmetic on general registers.
_ARITHMETIC: tuple[tuple[int, int, Callable[[int], Effect]], ...] = (
    (0x1F800000, 0x11000000, _add_immediate),
    (0x1F800000, 0x12000000, _logical_immediate),
    (0x1F800000, 0x12800000, _move_wide),
    (0x1F000000, 0x0A000000, _logical_registers),
    (0x1F200000, 0x0B000000, _add_registers),
    (0x1FE00000, 0x0B200000, _add_extended),
)
_BRANCHES = (p.B_COND, p.CB, p.TB)


def _parsed(word: int, address: int) -> p.Arm64Instruction:
    return p.parse(e.word(word), address)


def _step(word: int, address: int) -> Effect | None:
    """Return the registers that an instruction after the load-exclusive reads and writes; None if
    kinst does not let this instruction run twice."""
    parsed = _parsed(word, address)
    if parsed.kind == p.B_COND:
        return _effect((_FLAGS,), ())
    if parsed.kind in _BRANCHES:
        return _effect((parsed.register,), ())
    return next((does(word) for mask, value, does in _ARITHMETIC if word & mask == value), None)


def targets(addresses: Sequence[int], words: npt.NDArray[np.uint32]) -> frozenset[int]:
    """Return the targets of the direct branches among a function's instructions.

    Args:
        addresses: addresses of the instructions.
        words: encodings of the instructions, in the same order.
    """
    # Of C4.1's "Branches, Exception Generating and System instructions", by their first bits.
    branches = (words & 0x7C000000 == 0x14000000) | (words & 0xFF000000 == 0x54000000)
    branches |= words & 0x7C000000 == 0x34000000
    kinds = (*_BRANCHES, p.B)
    parsed = (_parsed(int(words[k]), addresses[k]) for k in np.flatnonzero(branches).tolist())
    return frozenset(one.target for one in parsed if one.kind in kinds)


def targets_known(addresses: Sequence[int], words: npt.NDArray[np.uint32]) -> bool:
    """Return whether kinst knows the targets of all direct branches among a function's
    instructions. Return False if an instruction may be a branch of an unknown form.

    Args:
        addresses: addresses of the instructions.
        words: encodings of the instructions, in the same order.
    """
    suspects = np.flatnonzero(words & 0x1C000000 == 0x14000000).tolist()
    return all(_parsed(int(words[k]), addresses[k]).kind != p.UNKNOWN for k in suspects)


def refusal(words: Mapping[int, int], load: int, site: int, branch_targets: Collection[int]) -> str:
    """Return why the instructions from a load-exclusive up to a site cannot run again before the
    site's instruction; "" if they can.

    Args:
        words: encodings of the function's instructions, by address.
        load: address of the load-exclusive.
        site: address of the site.
        branch_targets: targets of the function's direct branches (targets()).
    """
    if not load < site:
        return _APART
    if any(at in branch_targets for at in range(load + e.SIZE, site + e.SIZE, e.SIZE)):
        return _ENTERED
    inputs, written, may_have_left = set[int](), set[int](), False
    for at in range(load, site, e.SIZE):
        effect = _load_exclusive(words[at]) if at == load else _step(words[at], at)
        if effect is None:
            return _NOT_PURE
        if may_have_left and effect.writes:
            return _LEAVES
        may_have_left |= _parsed(words[at], at).kind in _BRANCHES
        inputs |= effect.reads - written
        written |= effect.writes
    return _INPUTS if inputs & written else ""


@refuses_out_of_reach
def displace(rerun_prefix: bytes, code: bytes, address: int, to: int) -> Relocated | Refused:
    """Return code for the address `to` that runs `rerun_prefix` again and then has the effect of
    the one instruction `code` at `address`; or the refusal.

    Args:
        rerun_prefix: the instructions directly before `code`, from a load-exclusive on. They must
            be able to run again (refusal()).
    """
    start, copied, leaving = address - len(rerun_prefix), b"", list[tuple[int, int]]()
    for offset in range(0, len(rerun_prefix), e.SIZE):
        instruction = rerun_prefix[offset : offset + e.SIZE]
        parsed = p.parse(instruction, start + offset)
        if parsed.kind in _BRANCHES:
            leaving.append((offset, parsed.target))
            copied += instruction
            continue
        moved = relocate.move(instruction, start + offset, to + offset)
        if isinstance(moved, Refused):
            return moved
        copied += moved.code
    last = relocate.displace(code, address, to + len(copied))
    if isinstance(last, Refused):
        return last
    at = last.original_at
    done = copied + last.code
    for offset, target in leaving:
        done = relocate.aimed(done, offset, len(done)) + e.branch(
            to + len(done), target, relocate.TARGET
        )
    return Relocated(done, at if at < 0 else at + len(copied))
