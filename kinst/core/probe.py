"""Values for functions, sites and probes.

Tested by tests/providers."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from kinst.core.dataclass import dataclass
from kinst.core.layout import ARGUMENT_POINTED, POINTED_SHIFT

MOST_GAPS = 3  # gaps that a message lists


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the running kernel, as its symbol describes it.

    Attributes:
        module: name of the module; "vmlinux" for the kernel proper.
        size: bytes, from the symbol table.
    """

    module: str
    name: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class ProbeName:
    """The full name of a probe: provider:module:function:name."""

    provider: str
    module: str
    function: str
    name: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.module}:{self.function}:{self.name}"

    def __hash__(self) -> int:
        """Hash only the two parts that differ most, for speed: names are looked up hundreds of
        thousands of times."""
        return hash((self.function, self.name))

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """The provider, module, function and name, as a tuple."""
        return self.provider, self.module, self.function, self.name


def _globs(pattern: str, value: str) -> bool:
    return not pattern or fnmatchcase(value, pattern)


@dataclass(frozen=True, slots=True)
class LibraryProbe:
    """A probe that a D library declares over probes of other providers.

    Attributes:
        name: the full name of the library's probe, without a function.
        alone: whether the program names this probe; False if a glob of the program matches it.
        function: glob of the kernel functions in which the probe is to fire; "" for all.
        types: types of the probe's args[], as the library declares them.
    """

    name: ProbeName
    alone: bool = True
    function: str = ""
    types: tuple[str, ...] = ()

    def named(self, name: ProbeName, site: Site | None) -> ProbeName | None:
        """Return the name that a probe of another provider gets when the library's probe is
        declared over it: the library probe's name, with the other probe's function. None if the
        library's probe is not to fire in this function.

        Args:
            name: the name of the other provider's probe. If it has no function, the function of
                `site` is taken.
            site: the site of that probe, None if it has none.
        """
        function = name.function or (site.function.name if site is not None else "")
        if not _globs(self.function, function):
            return None
        own = self.name
        return ProbeName(own.provider, own.module, function, own.name)


@dataclass(frozen=True, slots=True)
class ProbePattern:
    """A probe description as the program has it. Each part is an sh(1) glob; an empty part matches
    anything.

    Attributes:
        id: the probe id, if the description is a number; else 0. For a probe id the parts are
            empty, and matches() returns False, because a probe's name does not contain its id.
        library: a probe of a D library, if the description comes from that probe's declaration: the
            matching probes get the library probe's name. None if they keep their own names.
        process: the process id that follows the provider's name: 1234 in pid1234:a.out:main:entry,
            where `provider` is pid. 0 for $target before the process exists; None if there is no
            id.
    """

    provider: str = ""
    module: str = ""
    function: str = ""
    name: str = ""
    id: int = 0
    library: LibraryProbe | None = None
    process: int | None = None

    @property
    def full_provider(self) -> str:
        """The first part of the description: the provider's name, with the process id if there is
        one."""
        return self.provider + ("" if self.process is None else str(self.process or "$target"))

    def matches(self, probe: ProbeName) -> bool:
        return (
            not self.id
            and _globs(self.full_provider, probe.provider)
            and _globs(self.module, probe.module)
            and _globs(self.function, probe.function)
            and _globs(self.name, probe.name)
        )

    def __str__(self) -> str:
        """Return the description as the user knows it: for a library's probe, its name, with the
        function that the user has named."""
        if self.library is None:
            return self.text
        name = self.library.name
        return f"{name.provider}:{name.module}:{self.library.function}:{name.name}"

    @property
    def text(self) -> str:
        """The description in D."""
        if self.id:
            return str(self.id)
        return f"{self.full_provider}:{self.module}:{self.function}:{self.name}"


@dataclass(frozen=True, slots=True)
class Crossing:
    """How an instruction enters or leaves an inlined function.

    Attributes:
        kind: "entry" or "return".
        layer: index of this crossing if the instruction enters or leaves several nested copies;
            otherwise 0. Copies are entered from the outermost to the innermost, and left from the
            innermost to the outermost.
    """

    kind: str
    function: str
    layer: int = 0


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction of the running kernel: its function, its offset from the function's start, and
    its live bytes."""

    function: Function
    offset: int
    code: bytes

    @property
    def address(self) -> int:
        return self.function.address + self.offset


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a function that are neither decoded as instructions nor padding. Nothing in a gap
    can be traced.

    Attributes:
        function: the function, or the part of a function, that contains the bytes.
        offset: offset of the first byte from the start of `function`.
        size: number of bytes.
        reason: why no instruction was decoded at the first byte.
    """

    function: Function
    offset: int
    size: int
    reason: str

    @property
    def end(self) -> int:
        """Offset of the first byte after the gap, from the start of `function`."""
        return self.offset + self.size

    def __str__(self) -> str:
        return f"{self.function.name}+{self.offset} to +{self.end} ({self.reason})"


def gap_text(gap: Gap) -> str:
    """Return the text that a listing shows for a gap, in place of its instructions."""
    return f"({gap.size} bytes that are not decoded: {gap.reason})"


def gaps_told(gaps: Sequence[Gap]) -> str:
    """Return a clause for a message that says how many bytes are not decoded, and where."""
    told = "; ".join(map(str, gaps[:MOST_GAPS]))
    more = f" and {len(gaps) - MOST_GAPS} more places" if len(gaps) > MOST_GAPS else ""
    size = sum(gap.size for gap in gaps)
    return f"{size} bytes are not decoded, and nothing there is traced: {told}{more}"


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe with its id.

    Attributes:
        site: the probe's instruction; None for a probe that is no instruction (a timer, BEGIN).
    """

    id: int
    name: ProbeName
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class ProbeInterface:
    """What the D compiler must know about a provider's probes."""

    # Globs of names of probes without a function and without typed arguments.
    plain: tuple[str, ...] = ()
    # Names among `plain` that a program may declare again.
    redeclared: tuple[str, ...] = ()
    # Globs of names of probes that fire in kinst's own process.
    own: tuple[str, ...] = ()
    # None of the provider's probes has arguments.
    all_plain: bool = False
    # Names of the probes at which a function's result is arg1.
    returns: tuple[str, ...] = ()
    # Each instruction of a function is a probe, named by its offset, and inline functions have
    # entry and return.
    by_offset: bool = False
    # Each function that is not inline has entry and return.
    of_functions: bool = False
    # Its probes are in a function that their description names, so that the function's local
    # variables can be read; False for tracepoints and system calls, which have arguments only.
    has_locals: bool = True
    # Its entry and return probes are those of system calls (dtrace -F shows them as => and <=).
    system_calls: bool = False
    # Its probes are in a user program, whose process id descriptions have after the provider's
    # name: pid1234:a.out:main:entry.
    of_process: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """How to find the value of one of arg0, arg1, ... when a probe fires at a site."""

    # How the value is found: ARGUMENT_* of core/layout.py.
    kind: int
    # By `kind`: a frame slot, the value itself, an offset from the stack pointer, or the number
    # that pointed_at() makes.
    value: int = 0
    # With ARGUMENT_NONE: a D expression over regs[] and memory that has its value, or "".
    expression: str = ""


def pointed_at(slot: int, offset: int) -> Argument:
    """Return an Argument for a value of 8 bytes in memory: a frame slot has an address, and the
    value is `offset` bytes after it. This memory must be mapped whenever the probe fires."""
    return Argument(ARGUMENT_POINTED, offset << POINTED_SHIFT | slot)


@dataclass(frozen=True, slots=True)
class Selection:
    """How to tell whether a hit belongs to a probe that shares its site with other probes. A number
    in memory decides, such as the number of a system call.

    A hit belongs to the probe if `number` is one of `values`. If `state` is not None, also (`state`
    & `mask`) must equal `wanted`.

    Attributes:
        number: how to find the number, from pointed_at(); only its low 32 bits count.
        values: the numbers for which a hit belongs to this probe.
        state: how to find a second number, from pointed_at(); None if there is none.
        mask: the bits of the second number that are compared.
        wanted: the value that these bits must have.
    """

    number: Argument
    values: tuple[int, ...]
    state: Argument | None = None
    mask: int = 0
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class ProgramText:
    """The D text of one command-line option.

    Attributes:
        letter: the option's letter: n, P, m, f, i or s.
        text: the D text.
        file: name of the text in messages.
    """

    letter: str
    text: str
    file: str
