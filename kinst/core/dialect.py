"""A system's own part of D: constants, structures, libraries, and encodings of what D shows.

Each system has a Dialect (SystemKind.dialect in kinst/systems), which the front end and the code
generator get as a value. The defaults are those of an unknown system.

Tested by tests/dlang/check/test_library.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

from kinst.core.boot import ConsoleSigns
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import StructType
from kinst.core.errors import KinstError


@dataclass(frozen=True)
class Library:
    """A file of D with types, inlines, translators and providers, like those in dtrace(1)'s
    /usr/lib/dtrace. The file is read when its text is first needed."""

    # File name, as in #pragma D depends_on library.
    name: str
    # The file's path, or its text.
    source: Path | str
    # Whether the file is read only if a program names the provider of the file's name, or another
    # library that is read depends on the file.
    by_provider: bool = False

    @property
    def provider(self) -> str:
        """Name of the provider that the file may declare: the file's name without .d."""
        return self.name.removesuffix(".d")

    @cached_property
    def text(self) -> str:
        """The D text.  Raises KinstError if the file cannot be read."""
        if isinstance(self.source, str):
            return self.source
        try:
            return self.source.read_text("utf-8", "surrogateescape")
        except OSError as error:
            raise KinstError(f"failed to open D library {self.source}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class EncodedBits:
    """One of the bit fields in which an encoded number stores parts of another number. It
    contributes (encoded >> shift & mask) << place to the decoded number."""

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
    """The numbers that a system gives to the address families that D's inet_ntop() knows."""

    inet: int
    inet6: int


@dataclass(frozen=True, slots=True)
class MustSucceed:
    """How a system's kernel tells calls that must not fail: by a flag among their arguments."""

    # Name of the type of the parameter that has the flags.
    type: str
    # Name of the flag.
    flag: str


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """How a guest runs the tries of `kinst inject` and `kinst race` (kinst/trials). In each try the
    guest runs the same command, and kinst makes another call fail, or makes a CPU wait at another
    instruction."""

    # Shell script that runs the tries. kinst puts assignments of the script's variables before it;
    # the script's first lines say which variables it has.
    script: Path
    # The script tells the D program which try begins, by a system call with a number: the try's
    # number plus `base`.
    base: int
    # Probe description, in D, of the probe that fires at this system call.
    told: str
    # D expression for the number that the system call has at this probe.
    number: str
    # Name of the error that a function returns if there is no memory.
    no_memory: str
    # Patterns for lines of the kernel's log.
    signs: ConsoleSigns
    # How calls are told that must not fail; None if the system has no such calls.
    must_succeed: MustSucceed | None = None


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
    # Names of functions that call the parts of a kernel's boot: each gets the address of the
    # function that it calls as its first argument.
    boot_calls: tuple[str, ...] = ()
    # Names of functions that are parts of the boot themselves; a kernel has some of them.
    boot_functions: tuple[str, ...] = ()
    # How tries run in a guest; None if kinst does not know that.
    trials: TrialFacts | None = None


UNKNOWN = Dialect()


def libraries_in(folder: Path, *, by_provider: bool = False) -> tuple[Library, ...]:
    """Return the D libraries in a folder (*.d), sorted by name, without reading them.

    Args:
        by_provider: whether a library is read only if a program names the library's provider;
            otherwise all are read.
    """
    return tuple(Library(path.name, path, by_provider) for path in sorted(folder.glob("*.d")))


def with_libraries(dialect: Dialect, folders: Sequence[str]) -> Dialect:
    """Return a dialect with the D libraries of the user's folders (-L) before the system's. A
    user's file replaces the system's file of the same name. If several of the user's folders have
    a file of the same name, the file in the last of these folders is taken.

    Raises KinstError if there is no such folder.
    """
    if not folders:
        return dialect
    found = {one.name: one for one in dialect.libraries}
    own: dict[str, Library] = {}
    for folder in folders:
        if not Path(folder).is_dir():
            raise KinstError(f"-L {folder}: no such folder", "a folder with D libraries (*.d)")
        own.update({one.name: one for one in libraries_in(Path(folder))})
    rest = [one for name, one in found.items() if name not in own]
    return replace(dialect, libraries=(*own.values(), *rest))
