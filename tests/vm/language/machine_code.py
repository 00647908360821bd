"""Facts about machine code that tests need, decoded by capstone, not by kinst."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import capstone
from capstone import x86_const

from tests.vm.command import Row

_DECODER = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
_DECODER.detail = True
_LEAVING = (
    capstone.CS_GRP_JUMP, capstone.CS_GRP_CALL, capstone.CS_GRP_RET, capstone.CS_GRP_INT,
    capstone.CS_GRP_IRET,
)  # fmt: skip


def _decoded(row: Row) -> capstone.CsInsn:
    """Return one instruction, whose address is its offset in the function."""
    (found,) = _DECODER.disasm(row.code, row.offset, 1)
    return found


def leaves(row: Row) -> bool:
    """Return whether control may go elsewhere than to the next instruction."""
    return any(_decoded(row).group(group) for group in _LEAVING)


def branch_targets(rows: Sequence[Row]) -> set[int]:
    """Return the offsets in a function that its own branches go to.

    This kernel is built with retpolines and so without jump tables: there are no others.
    """
    found = set()
    for row in rows:
        one = _decoded(row)
        if one.group(capstone.CS_GRP_JUMP) and one.operands[0].type == x86_const.X86_OP_IMM:
            found.add(one.operands[0].imm)
    return found


def only_compares(row: Row) -> bool:
    """Return whether an instruction changes no register but the flags."""
    return _decoded(row).mnemonic in ("test", "cmp")


def entry_line(rows: Sequence[Row]) -> list[Row]:
    """Return the instructions that run exactly once for each call, in any case.

    They are those from the entry to the first that may go elsewhere, unless a loop comes back to
    them.
    """
    targets = branch_targets(rows)
    line: list[Row] = []
    for row in rows:
        if row.offset in targets:
            break
        line.append(row)
        if leaves(row):
            break
    return line


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return neighbours (before, after) of which one runs exactly as often as the other.

    `before` only falls through, and nothing jumps to `after`.
    """
    targets = branch_targets(rows)
    return [
        (a, b)
        for a, b in itertools.pairwise(rows)
        if a.after == b.offset and not leaves(a) and b.offset not in targets
    ]


def reaches(rows: Iterable[Row], planted: Iterable[Row], offset: int) -> bool:
    """Return whether the kernel finds an instruction boundary at `offset` while sites below are
    planted.

    Before it accepts a kprobe, the kernel decodes the function from its start.  It takes kinst's
    int3 for an instruction of one byte, and then decodes the rest of the original instruction as
    the next ones; a jump is followed by int3s and causes no confusion.
    """
    patched = {p.offset: p for p in planted}
    code = bytearray()
    for row in rows:
        # Between instructions there are only the int3s that the kernel has after a ret.
        code += b"\xcc" * (row.offset - len(code))
        assert row.offset == len(code)
        site = patched.get(row.offset)
        if site is None:
            code += row.code
        elif site.way == "jump":
            code += b"\xe9\0\0\0\0".ljust(len(row.code), b"\xcc")
        else:
            code += b"\xcc" + row.code[1:]
    at = 0
    for one in _DECODER.disasm(bytes(code[: offset + 15]), 0):
        if one.address >= offset:
            return bool(one.address == offset)
        at = one.address + one.size
    return at == offset
