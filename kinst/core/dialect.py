"""A system's own part of D: constants, structures, libraries, and encodings of what D shows.

Each system has a Dialect (SystemKind.dialect in kinst/systems), which the front end and the code
generator get as a value. The defaults are those of an unknown system.

Tested by tests/dlang/check/test_library.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import StructType


@dataclass(frozen=True, slots=True)
class Library:
    """A file of D with types, inlines and translators of a system, like those in dtrace(1)'s
    /usr/lib/dtrace."""

    # File name, as in #pragma D depends_on library.
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class EncodedBits:
    """A bit field of an encoded number, and where its bits go in the decoded number: (encoded >>
    shift & mask) << place."""

    shift: int
    mask: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """How the kernel encodes a device's major and minor numbers in one number: the bit fields of
    each."""

    major: tuple[EncodedBits, ...]
    minor: tuple[EncodedBits, ...]


@dataclass(frozen=True, slots=True)
class AddressFamilies:
    """A system's numbers of the address families that D's inet_ntop() knows."""

    inet: int
    inet6: int


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A system's own part of D: constants, structures, libraries and encodings.

    The defaults are those of an unknown system.
    """

    # The system's name in messages, "" for an unknown system.
    system: str = ""
    # Names that every program knows, and their values.
    constants: Mapping[str, int] = field(default_factory=dict)
    # Structures of the Guide's programs, by tag, for kernels without their types.
    structures: Mapping[str, StructType] = field(default_factory=dict)
    # Tag of the structure that curthread points to; "" if its type is not known.
    thread: str = ""
    # The largest error number, if functions return errors as negative numbers; 0 if errors are kept
    # in the thread (Facts.builtins has "errno" then).
    most_error: int = 0
    # Names of variables and subroutines that only other systems have -> why this system lacks them.
    absent: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    devices: DeviceNumbers | None = None
    families: AddressFamilies | None = None
    # Names of functions, or of types of pointers to functions, that have the prototype of those
    # that a tracepoint calls; {} stands for the tracepoint's name.
    tracepoint_prototypes: tuple[str, ...] = ()
    # Globs of the functions that begin and end an interrupt. In them, and in what they call, the
    # CPU may still have, or have again, the thread-local variables of the interrupted thread.
    interrupt_entry: tuple[str, ...] = ()


UNKNOWN = Dialect()
