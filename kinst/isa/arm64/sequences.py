"""Search for arm64 instructions that cannot be planted because of other instructions near them.

A load-exclusive marks memory. The store-exclusive that follows writes the memory only if the mark
is still there: another exclusive access or an exception clears it (DDI 0487, B2.9 "Synchronization
and semaphores"). A probe's work between the two clears the mark, too. Then a loop that repeats both
until the store succeeds would never end. wfe and wfet also wait until the mark of a load-exclusive
is cleared. An instruction between a load-exclusive and its store-exclusive can be planted only if
the sequence can run again after the probe's work (rerun.py).

The load-exclusive itself can be planted. The probe's work comes before its displaced copy; between
the copy and the next instruction there is one direct branch, which the manual allows. But a
debugger cannot step over a load-exclusive: a step ends with an exception, which clears the mark.

Tested by tests/isa/arm64/test_rerun.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kinst.core.columns import Bools
from kinst.core.instruction import Instruction
from kinst.isa.arm64 import parse as p
from kinst.isa.arm64 import rerun
from kinst.isa.arm64.encode import SIZE
from kinst.isa.arm64.relocate import literal_size

U32 = npt.NDArray[np.uint32]

_EXCLUSIVE = "it is between a load-exclusive and its store-exclusive"
_STEPPED = "a debugger's stop after a load-exclusive makes its store-exclusive fail"
_PREFIX = "movprfx and the instruction after it must stay together"
_DATA = "it is data that the function loads"
_SIGNS = "after pacm, addresses are signed with the instruction's own"
_UNKNOWN = "an instruction that kinst does not know may lead in between"

_LONGEST = 32  # instructions from a load-exclusive to its end: Linux's longest have 10
_WFE = 0xD503205F
_WFET = 0xD5031000  # and a register
_PACM = 0xD50324FF
_CLREX = 0xD503305F
_SEVL = 0xD50320BF  # the wfe after it does not wait
# Loads and stores exclusive, by the lower six bits of the encoding's highest byte; with bit 0 set,
# they act as unprivileged (FEAT_LSUI).
_TOP_EXCLUSIVE, _TOP_MASK = 0x08, 0x3E
_PLAIN, _LOAD, _END, _SETS_EVENT = range(4)


def _exclusive(word: int) -> int:
    """Return how an instruction acts on the mark of a load-exclusive.

    Returns:
        _LOAD: it makes the mark.
        _END: it clears the mark or waits until the mark is cleared (store-exclusive, clrex, wfe,
            wfet).
        _SETS_EVENT: it is sevl, so that the next wfe does not wait.
        _PLAIN: it is another instruction.
    """
    if word & 0xBFA00000 == 0x89000000:  # ldtxr, ldatxr, sttxr, stltxr
        return _LOAD if word & 1 << 22 else _END
    if word & 0x3F800000 == 0x08000000 and (not word & 1 << 21 or word >> 31):
        return _LOAD if word & 1 << 22 else _END
    if word == _WFE or word & ~0x1F == _WFET or word & 0xFFFFF0FF == _CLREX:
        return _END
    return _SETS_EVENT if word == _SEVL else _PLAIN


def has_sequences(code: bytes) -> bool:
    words = np.frombuffer(code[: len(code) & -SIZE], "<u4")
    exclusive = words & _TOP_MASK << 24 == _TOP_EXCLUSIVE << 24
    return bool((exclusive | _prefixes(words) | _literals(words) | (words == _PACM)).any())


def _prefixes(words: U32) -> Bools:
    """Return a mask of the encodings that are movprfx."""
    prefixes: Bools = (words & 0xFF3EE000 == 0x04102000) | (words & 0xFFFFFC00 == 0x0420BC00)
    return prefixes


def _literals(words: U32) -> Bools:
    """Return a mask of the encodings that load from an address relative to their own."""
    literals: Bools = words & 0x3B000000 == 0x18000000
    return literals


def unsafe(instructions: Sequence[Instruction]) -> Mapping[int, str]:
    addresses, words = _columns(instructions)
    reasons: dict[int, str] = {}
    for address, (_, why) in _sequences(addresses, words.tobytes()).items():
        if why:
            reasons[address] = f"{_EXCLUSIVE}, and {why}"
    for k in np.flatnonzero(words == _PACM).tolist():
        reasons |= {addresses[k]: _SIGNS, addresses[k] + SIZE: _SIGNS}
    prefixes = _prefixes(words)
    for k in np.flatnonzero(prefixes | _literals(words)).tolist():
        address, word = addresses[k], int(words[k])
        if prefixes[k]:
            reasons |= {address: _PREFIX, address + SIZE: _PREFIX}
        else:
            parsed = p.parse(word.to_bytes(SIZE, "little"), address)
            size = literal_size(word)
            data = range(parsed.target, parsed.target + size, SIZE)
            reasons.update(dict.fromkeys(data, _DATA))
    return reasons


def rerun_starts(instructions: Sequence[Instruction]) -> Mapping[int, int]:
    """Return the instructions of a function that can be planted only if their trampolines run the
    instructions from a load-exclusive on again (rerun.py).

    The result maps the address of each such instruction to the address of its load-exclusive.
    """
    addresses, words = _columns(instructions)
    sequences = _sequences(addresses, words.tobytes())
    return {address: load for address, (load, why) in sequences.items() if not why}


def _columns(instructions: Sequence[Instruction]) -> tuple[tuple[int, ...], U32]:
    """Return the addresses and the encodings of instructions, in the same order."""
    code = b"".join([i.code for i in instructions])
    return tuple([i.address for i in instructions]), np.frombuffer(code, "<u4")


@lru_cache(maxsize=4)  # unsafe() and rerun_starts() ask for the same function
def _sequences(addresses: tuple[int, ...], code: bytes) -> Mapping[int, tuple[int, str]]:
    """Return the instructions of a function at which a probe's work would clear a load-exclusive's
    mark.

    The result maps the address of each such instruction to a pair: the address of the
    load-exclusive, and why the sequence from there on cannot run again. The reason is "" if the
    sequence can run again.

    Args:
        addresses: addresses of the function's instructions.
        code: bytes of the instructions, one after another.
    """
    encoded = np.frombuffer(code, "<u4")
    exclusive = np.flatnonzero(encoded & _TOP_MASK << 24 == _TOP_EXCLUSIVE << 24).tolist()
    loads = [addresses[k] for k in exclusive if _exclusive(int(encoded[k])) == _LOAD]
    if not loads:
        return {}
    words = dict(zip(addresses, encoded.tolist(), strict=True))
    branch_targets = rerun.targets(addresses, encoded)
    unknown = "" if rerun.targets_known(addresses, encoded) else _UNKNOWN
    sequences: dict[int, tuple[int, str]] = {}
    for load in loads:
        for site in _inside_sequence(words, load):
            if site not in sequences or sequences[site][1]:
                sequences[site] = load, unknown or rerun.refusal(words, load, site, branch_targets)
    return sequences


def unsteppable(code: bytes) -> str:
    return _STEPPED if _exclusive(int.from_bytes(code, "little")) == _LOAD else ""


def _inside_sequence(words: Mapping[int, int], load: int) -> set[int]:
    """Return the addresses of the instructions of a sequence: those on the paths from a
    load-exclusive to an instruction that clears its mark or waits for that. The load-exclusive
    itself is left out.

    Args:
        words: encodings of the function's instructions, by address.
        load: address of the load-exclusive.
    """
    successors: dict[int, list[int]] = {}  # addresses that may follow each address
    reached, frontier = {load}, [load]
    for _ in range(_LONGEST):
        following: list[int] = []
        for at in frontier:
            successors[at] = [to for to in _next(words, at) if to in words]
            for to in successors[at]:
                kind = _exclusive(words[to])
                if to not in reached and kind in (_PLAIN, _END):
                    reached.add(to)
                    if kind == _PLAIN:
                        following.append(to)
        frontier = following
    inside = {at for at in reached if _exclusive(words[at]) == _END}
    while True:
        before = {
            at
            for at, after in successors.items()
            if at not in inside and at != load and inside & {*after}
        }
        if not before:
            return inside
        inside |= before


def _next(words: Mapping[int, int], at: int) -> list[int]:
    """Return the addresses in the function that control can go to from the instruction at `at`.

    Args:
        words: encodings of the function's instructions, by address.
    """
    parsed = p.parse(words[at].to_bytes(SIZE, "little"), at)
    if parsed.kind in (p.BR, p.RET, p.RET_NEAR, p.BL, p.BLR):
        return []
    if parsed.kind == p.UNKNOWN:
        return [to for to in words if abs(to - at) <= _LONGEST * SIZE]
    if parsed.kind == p.B:
        return [parsed.target]
    if parsed.kind in (p.B_COND, p.CB, p.TB):
        return [at + SIZE, parsed.target]
    return [at + SIZE]
