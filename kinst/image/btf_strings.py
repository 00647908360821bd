"""Check whether a file's BTF contains a name, without reading its types, so that a misspelled name
is reported early.

Tested by tests/image/test_btf_types.py.
"""

from __future__ import annotations

import struct

from kinst.image.elf_file import ElfFile

MAGIC = 0xEB9F
HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, length; types and strings: at, size


def has_string(file: ElfFile, text: str) -> bool:
    """Return whether `text` is a whole string in a file's BTF string section. If the file has no
    readable BTF, return True: the name cannot be ruled out."""
    section = file.section(".BTF")
    if section is None or section.size <= HEADER.size:
        return True
    if section.offset + section.size > len(file.mapped):
        return True
    magic, _, _, length, _, _, at, size = HEADER.unpack_from(file.mapped, section.offset)
    if magic != MAGIC:
        return True
    start = section.offset + length + at
    return file.mapped.find(b"\0" + text.encode() + b"\0", start, start + size) >= 0
