"""Reads what LLVM emits: one text section, the offsets of its functions, and nothing else.

ELF: System V ABI, chapter 4 (sections, symbols).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import llvmlite.binding as llvm

_SYMBOL = struct.Struct("<IBBHQQ")
# Sections that are not loaded, or that LLVM writes for tools.
_IDLE = (
    b".note",
    b".strtab",
    b".symtab",
    b".comment",
    b".llvm",
    b".eh_frame",
    b".riscv.attributes",
)


class ObjectError(Exception):
    """The emitted object is not plain position-fixed code: a defect of the lowering."""


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """code: the text section.  offsets: of every named function in it."""

    code: bytes
    offsets: dict[str, int]


def read_object(data: bytes) -> ObjectCode:
    """Raises ObjectError when anything but text would have to be loaded or relocated."""
    sections: dict[bytes, bytes] = {}
    for section in llvm.ObjectFileRef.from_data(data).sections():
        name = section.name() or b""
        if (section.size() and not name.startswith(_IDLE)) or name in (b".symtab", b".strtab"):
            sections[name] = section.data()
    code = sections.pop(b".text", b"")
    symbols, names = sections.pop(b".symtab", b""), sections.pop(b".strtab", b"")
    sections.pop(b"", None)
    if sections:
        raise ObjectError(f"sections besides .text: {sorted(sections)}")
    offsets = {}
    for name_at, info, _, section_index, value, _ in _SYMBOL.iter_unpack(symbols):
        if info & 0xF == 2 and section_index:  # STT_FUNC
            offsets[names[name_at : names.index(b"\0", name_at)].decode()] = value
    return ObjectCode(code, offsets)
