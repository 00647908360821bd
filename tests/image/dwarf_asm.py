"""Debug information written by hand: one unit, one inline function, one caller with one copy."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte = value & 127
        value >>= 7
        done = value == (-1 if byte & 64 else 0)
        out.append(byte | (0 if done else 128))
        if done:
            return bytes(out)


@dataclass(frozen=True)
class Value:
    """An attribute: number, form, its bytes in .debug_info, and the constant of its form."""

    attribute: int
    form: int
    data: bytes = b""
    const: int | None = None


@dataclass
class Unit:
    """A unit to be: version, bytes of offsets (4 or 8) and of addresses, entries.

    entries: (tag, children, attributes), children being further entries.  skew: added to the
    abbreviation codes, to be sparse.
    """

    version: int = 5
    offset_size: int = 4
    address_size: int = 8
    kind: int = 1
    skew: int = 0
    abbreviations: bytes = b""
    info: bytes = b""
    codes: int = 0
    places: dict[str, int] = field(default_factory=dict)

    @property
    def header_size(self) -> int:
        size = (4 if self.offset_size == 4 else 12) + 2 + self.offset_size + 1
        return size + (1 if self.version >= 5 else 0)

    def here(self, name: str) -> None:
        """Remember the offset of the entry that comes next."""
        self.places[name] = self.header_size + len(self.info)

    def entry(self, tag: int, values: list[Value], children: bool = False) -> None:
        self.codes += 1
        code = self.codes + self.skew
        self.abbreviations += uleb(code) + uleb(tag) + bytes([children])
        for value in values:
            self.abbreviations += uleb(value.attribute) + uleb(value.form)
            if value.const is not None:
                self.abbreviations += sleb(value.const)
        self.abbreviations += b"\0\0"
        self.info += uleb(code) + b"".join(value.data for value in values)

    def end(self) -> None:
        """The end of an entry's children."""
        self.info += b"\0"

    def sections(self) -> dict[str, bytes]:
        tail = b""
        offset = bytes(self.offset_size)
        if self.version >= 5:
            tail += bytes([self.kind, self.address_size]) + offset
        else:
            tail += offset + bytes([self.address_size])
        body = struct.pack("<H", self.version) + tail + self.info
        if self.offset_size == 4:
            length = struct.pack("<I", len(body))
        else:
            length = struct.pack("<IQ", 0xFFFFFFFF, len(body))
        return {".debug_info": length + body, ".debug_abbrev": self.abbreviations + b"\0"}


def elf(path: Path, sections: dict[str, bytes], compress: bool = False) -> Path:
    """An ELF file (x86-64, executable) with only these sections."""
    names = b"\0" + b"\0".join(name.encode() for name in [*sections, ".shstrtab"]) + b"\0"
    contents = {**sections, ".shstrtab": names}
    data, headers = bytearray(64), [bytes(64)]
    for name, content in contents.items():
        flags = 0
        if compress and name.startswith(".debug_"):
            content = struct.pack("<IIQQ", 1, 0, len(content), 1) + zlib.compress(content)
            flags = 0x800
        kind = 3 if name == ".shstrtab" else 1
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        headers.append(
            struct.pack("<IIQQQQIIQQ", at, kind, flags, 0, len(data), len(content), 0, 0, 1, 0)
        )
        data += content
    while len(data) % 8:
        data.append(0)
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, len(data), 0, 64, 0, 0, 64, len(headers), len(headers) - 1
    )
    data[:64] = head
    path.write_bytes(bytes(data) + b"".join(headers))
    return path
