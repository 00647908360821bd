"""The part of D that is a system's: its constants, structures, libraries, and how it encodes what D
shows.

Each system offers one (SystemKind.dialect in kinst/systems); the front end and the code generator
get it as a value.  The defaults are those of a system of which nothing is known.

Tested by tests/dlang/check/test_library.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinst.core.dtypes import StructType


@dataclass(frozen=True, slots=True)
class Library:
    """A file of D with the system's types, inlines and translators, in the manner of dtrace(1)'s
    /usr/lib/dtrace/*.d."""

    # Of the file, as #pragma D depends_on library has it.
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bits of an encoded number: (number >> shift & mask) << place."""

    shift: int
    mask: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """How the kernel encodes a device's numbers in one: the pieces of each, to be joined."""

    major: tuple[Piece, ...]
    minor: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class AddressFamilies:
    """Numbers of the families of addresses that inet_ntop() knows."""

    inet: int
    inet6: int


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    # The system's name in messages, "" for an unknown one.
    system: str = ""
    # Names that every program knows, and their values.
    constants: Mapping[str, int] = field(default_factory=dict)
    # Structures of the Guide's programs, by tag, for kernels without their types.
    structures: Mapping[str, StructType] = field(default_factory=dict)
    # Tag of the structure that curthread points to; "" where its type is not known.
    thread: str = ""
    # The largest error number, if functions return their errors as negative numbers; 0 if the
    # thread keeps its error (Facts.builtins has "errno" then).
    most_error: int = 0
    # Variables and subroutines of other systems: why this one has none.
    absent: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    devices: DeviceNumbers | None = None
    families: AddressFamilies | None = None


UNKNOWN = Dialect()
