"""Search for the jump tables (of switch statements) that arm64 code uses.

GCC's code for switch (aarch64.md, casesi) loads an entry of 1, 2 or 4 bytes, and adds four times
the entry to the address of a label after the jump:

    ldrh wE, [xT, wI, uxtw #1]; adr xL, label; add xD, xL, wE, sxth #2; br xD

An adrp and an add somewhere before have put the table's address into xT. A comparison of wI with
the last entry's number comes before the load, or before a branch that leads to the load. Arrays of
labels have whole addresses. Encodings: DDI 0487, C4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kinst.core.instruction import Instruction, JumpTable
from kinst.core.words import MASK
from kinst.isa.arm64 import parse as p
from kinst.isa.arm64.encode import SIZE, ZR

_NEAR = 8  # instructions from an adrp to its add
_BEFORE = 6  # instructions before the jump among which the load of the entry is
_COMPARE = 8  # instructions before the load among which the comparison is
_SIZES = {4: 1, 5: 2, 6: 4}  # sxtb, sxth, sxtw
_STAYING = (p.PLAIN, p.ADR, p.ADRP, p.LITERAL)  # kinds that are no branches


def jump_tables(instructions: Sequence[Instruction]) -> list[JumpTable]:
    words = {i.address: int.from_bytes(i.code, "little") for i in instructions}
    makers = list(_addresses(instructions, words))
    tables = [JumpTable(place, 8) for _, _, place in makers]
    for address, word in words.items():
        if p.parse(word.to_bytes(SIZE, "little"), address).kind == p.BR:
            tables += _of_jump(address, word >> 5 & 31, words, makers)
    return list(dict.fromkeys(tables))


# (address of an instruction that makes an address, register that it sets, the address made).
_Maker = tuple[int, int, int]


def _addresses(instructions: Sequence[Instruction], words: Mapping[int, int]) -> Iterator[_Maker]:
    for instruction in instructions:
        page = p.parse(instruction.code, instruction.address)
        if page.kind != p.ADRP:
            continue
        for address in range(instruction.end, instruction.end + _NEAR * SIZE, SIZE):
            word = words.get(address, 0)
            # add xD, xN, #imm12
            if word & 0xFFC00000 == 0x91000000 and word >> 5 & 31 == page.register:
                yield address, word & 31, page.target + (word >> 10 & 0xFFF) & MASK
                break


def _of_jump(
    jump: int, register: int, words: Mapping[int, int], makers: Sequence[_Maker]
) -> Iterator[JumpTable]:
    """Yield the jump tables that a br may use.

    Args:
        jump: address of the br.
        register: number of the register that holds the br's target.
        words: encodings of the function's instructions, by address.
        makers: the function's instructions that put a constant address into a register.
    """
    add = words.get(jump - SIZE, 0)
    # add xD, xL, wE, option #shift
    shift, option = add >> 10 & 7, add >> 13 & 7
    if add & 0xFFE00000 != 0x8B200000 or add & 31 != register or shift != 2:
        return
    label, entry = add >> 5 & 31, add >> 16 & 31
    size = _SIZES.get(option, 0)
    base, load = 0, 0
    for address in range(jump - 2 * SIZE, jump - _BEFORE * SIZE, -SIZE):
        word = words.get(address, 0)
        parsed = p.parse(word.to_bytes(SIZE, "little"), address)
        if parsed.kind == p.ADR and parsed.register == label and not base:
            base = parsed.target
        elif _entry_size(word) and word & 31 == entry and not load:
            load, size = address, size and _entry_size(word)
    if not base or not load or not size:
        return
    table, index = words[load] >> 5 & 31, words[load] >> 16 & 31
    count = _count(load, index, words)
    makers_of_table = {at: place for at, to, place in makers if to == table}
    at = _written(table, load, words)
    # If another instruction wrote the register, the table's address may have been saved meanwhile:
    # it is any of the addresses that are made.
    for place in (
        [makers_of_table[at]] if at in makers_of_table else [place for _, _, place in makers]
    ):
        yield JumpTable(place, size, base, 4, count)


def _written(register: int, before: int, words: Mapping[int, int]) -> int:
    """Return the address of the last instruction before the address `before` that may write a
    register; 0 if no instruction does. "Last" is by address: the search passes over branches and
    does not follow them.

    Args:
        words: encodings of the function's instructions, by address.
    """
    address = before - SIZE
    while (word := words.get(address)) is not None:
        if register in _may_write(word) and not _is_branch(word, address):
            return address
        address -= SIZE
    return 0


def _entry_size(word: int) -> int:
    """Return how many bytes a load with a register index loads (ldrb, ldrh, ldr w, ldrs*); 0 for
    other instructions."""
    if word & 0x3F200C00 != 0x38200800 or not word >> 22 & 3:
        return 0
    return (1, 2, 4, 0)[word >> 30]


def _count(load: int, index: int, words: Mapping[int, int]) -> int:
    """Return the number of entries of a jump table, from the comparison of its index; 0 if no
    comparison is found.

    Args:
        load: address of the instruction that loads the entry.
        index: register with the index.
        words: encodings of the function's instructions, by address.
    """
    for end in (load, *_leading_to(load, words)):
        for address in range(end - SIZE, end - _COMPARE * SIZE, -SIZE):
            word = words.get(address)
            if word is None:
                break
            # cmp wI, #imm12
            if word & 0xFFC0001F == 0x71000000 | ZR and word >> 5 & 31 == index:
                return (word >> 10 & 0xFFF) + 1
            if index in _may_write(word) and not _is_branch(word, address):
                break  # before this instruction the index may have had another value
    return 0


def _may_write(word: int) -> tuple[int, ...]:
    """Return the registers that an instruction may write. A load or store (C4.1) may write every
    register that it names, since it may load two registers or change its base; other instructions
    write their first operand."""
    if word & 0x0A000000 == 0x08000000:
        return word & 31, word >> 5 & 31, word >> 10 & 31, word >> 16 & 31
    return (word & 31,)


def _is_branch(word: int, address: int) -> bool:
    return p.parse(word.to_bytes(SIZE, "little"), address).kind not in _STAYING


def _leading_to(load: int, words: Mapping[int, int]) -> list[int]:
    """Return the addresses of the branches (b and b.cond) to the start of the code that leads
    straight to a load. That start is the instruction after the last branch before the load.

    Args:
        load: address of the load.
        words: encodings of the function's instructions, by address.
    """
    start = load
    while words.get(start - SIZE) is not None and not _is_branch(words[start - SIZE], start - SIZE):
        start -= SIZE
    branches = []
    for address, word in words.items():
        parsed = p.parse(word.to_bytes(SIZE, "little"), address)
        if parsed.kind in (p.B, p.B_COND) and parsed.target == start:
            branches.append(address)
    return branches
