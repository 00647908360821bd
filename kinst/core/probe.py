"""Images, functions, sites and probes.

Tested by tests/providers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from kinst.core.dataclass import dataclass
from kinst.core.layout import ARGUMENT_POINTED, POINTED_SHIFT

MOST_GAPS = 3  # that a message lists


@dataclass(frozen=True, slots=True)
class Function:
    """A function symbol at its address in the running kernel.

    Attributes:
        module: "vmlinux" for the kernel proper.
        size: bytes, from the symbol table.
    """

    module: str
    name: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class ProbeName:
    """provider:module:function:name, all parts known."""

    provider: str
    module: str
    function: str
    name: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.module}:{self.function}:{self.name}"

    def __hash__(self) -> int:
        """Hash the parts that differ most: names are looked up by the hundred thousand."""
        return hash((self.function, self.name))

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """The four parts, in order."""
        return self.provider, self.module, self.function, self.name


def _globs(pattern: str, value: str) -> bool:
    return not pattern or fnmatchcase(value, pattern)


@dataclass(frozen=True, slots=True)
class ProbePattern:
    """A probe description as written: empty parts match anything, parts are sh(1) globs.

    id: not 0 if the description is a probe id; then the parts are empty, and matches() is False,
    because names do not know ids."""

    provider: str = ""
    module: str = ""
    function: str = ""
    name: str = ""
    id: int = 0

    def matches(self, probe: ProbeName) -> bool:
        return (
            not self.id
            and _globs(self.provider, probe.provider)
            and _globs(self.module, probe.module)
            and _globs(self.function, probe.function)
            and _globs(self.name, probe.name)
        )

    def __str__(self) -> str:
        if self.id:
            return str(self.id)
        return f"{self.provider}:{self.module}:{self.function}:{self.name}"


@dataclass(frozen=True, slots=True)
class Crossing:
    """How an instruction enters or leaves an inlined function.

    Attributes:
        kind: entry or return.
        layer: which of several copies that begin or end at the same instruction.
    """

    kind: str
    function: str
    layer: int = 0


@dataclass(frozen=True, slots=True)
class Site:
    """One instruction of the running kernel: its place and its live bytes."""

    function: Function
    offset: int
    code: bytes

    @property
    def address(self) -> int:
        return self.function.address + self.offset


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a function that are neither instructions nor padding: nothing there can be traced.

    Attributes:
        function: the function, or the part of one, that holds them.
        offset: of the first byte, from the function's start.
        size: number of bytes.
        reason: why no instruction was decoded at the first byte.
    """

    function: Function
    offset: int
    size: int
    reason: str

    @property
    def end(self) -> int:
        """Offset of the first byte after the gap."""
        return self.offset + self.size

    def __str__(self) -> str:
        return f"{self.function.name}+{self.offset} to +{self.end} ({self.reason})"


def gap_text(gap: Gap) -> str:
    """Return what a listing shows in place of instructions."""
    return f"({gap.size} bytes that are not decoded: {gap.reason})"


def gaps_told(gaps: Sequence[Gap]) -> str:
    """Return one clause that says which bytes are not decoded."""
    told = "; ".join(map(str, gaps[:MOST_GAPS]))
    more = f" and {len(gaps) - MOST_GAPS} more places" if len(gaps) > MOST_GAPS else ""
    size = sum(gap.size for gap in gaps)
    return f"{size} bytes are not decoded, and nothing there is traced: {told}{more}"


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe with its id. site: None for probes that belong to no instruction."""

    id: int
    name: ProbeName
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class ProbeInterface:
    """Properties of a provider's probes that the D compiler must know."""

    # Names of probes without a function and without arguments.
    plain: tuple[str, ...] = ()
    # Those of them that a program may declare again.
    redeclared: tuple[str, ...] = ()
    # None of the provider's probes has arguments.
    all_plain: bool = False
    # Names of the probes at which a function's result is arg1.
    returns: tuple[str, ...] = ()
    # Each instruction of a function is a probe, named by its offset, and inline functions have
    # entry and return.
    by_offset: bool = False
    # Each function that is not inline has entry and return.
    of_functions: bool = False
    # Its entry and return are those of system calls (dtrace -F shows them as => and <=).
    system_calls: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """The value of argN at a site."""

    # ARGUMENT_* of core/layout.py.
    kind: int
    # Its slot, its value, bytes above the stack pointer, or pointed_at()'s number.
    value: int = 0


def pointed_at(slot: int, offset: int) -> Argument:
    """Return an argument: the 8 bytes at an offset from the address in a slot."""
    return Argument(ARGUMENT_POINTED, offset << POINTED_SHIFT | slot)


@dataclass(frozen=True, slots=True)
class ProgramText:
    """One -n, -P, -m, -f, -i or -s: its letter, its text, its name in messages."""

    letter: str
    text: str
    file: str
