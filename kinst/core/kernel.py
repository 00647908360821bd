"""Two protocols: the traced kernel, for providers and for planting; and providers, which find the
kernel's probes.

Tested by tests/providers and tests/test_contracts.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType
from kinst.core.errors import AbsentError
from kinst.core.instruction import Flow, Instruction
from kinst.core.probe import (
    Argument,
    Function,
    Gap,
    ProbeInterface,
    ProbeName,
    ProbePattern,
    Selection,
    Site,
)
from kinst.core.stability import ANY, ProviderStability
from kinst.core.system import SystemCall, Tracepoint, TracepointSite
from kinst.core.types import TypeSource

if TYPE_CHECKING:
    from kinst.core.columns import U16, Columns, Flows, Scanned
    from kinst.core.isa import Isa


@dataclass(frozen=True, slots=True)
class Exits:
    """The parts of a function, and the instructions from which control may leave their part.

    Attributes:
        parts: the parts of the function, in the order of Kernel.parts().
        leaving: (part, instruction in it, where control goes from the instruction), part by part.
    """

    parts: Sequence[Function]
    leaving: Sequence[tuple[Function, Instruction, Flow]]


class Kernel(Protocol):
    """The traced kernel, with the questions that providers may ask."""

    isa: Isa

    def find(self, module: str, function: str) -> Sequence[Function]:
        """Return the functions whose module and name match two globs. Symbols with the same name
        have the names name@1, name@2, ..., in address order.

        Raises KinstError if a name without a number stands for several symbols; the error lists
        them."""
        ...

    def suggest(self, function: str) -> str:
        """Return a hint for an unknown function name: "did you mean ...", or "" if no name is
        similar."""
        ...

    def instructions(self, function: Function) -> Sequence[Instruction]:
        """Return the live instructions of a function, in order."""
        ...

    def fetch(self, functions: Sequence[Function]) -> None:
        """Read the code of many functions with few reads of memory, and cache it for later calls of
        other methods."""
        ...

    def beginning(self, function: Function) -> Sequence[Instruction]:
        """Return the first few live instructions of a function, in order."""
        ...

    def columns(self, functions: Sequence[Function]) -> Scanned:
        """Return the live instructions of many functions, with the marks of Isa.scan(). Each piece
        of the result (Scanned.bounds) is one function."""
        ...

    def exits(self, functions: Sequence[Function]) -> Sequence[Exits]:
        """Return the parts of each function, and the instructions by which control may leave them,
        in the same order as the functions. Fast for many functions, since no object is made for
        each instruction."""
        ...

    def gaps(self, functions: Sequence[Function]) -> Sequence[Gap]:
        """Return the gaps of these functions, in the order of the functions: bytes that are in no
        instruction, except padding and code that the kernel has unmapped."""
        ...

    def flows(self, function: Function) -> Sequence[Flow]:
        """Return where control goes from each of instructions(function), in the same order. A jump
        to a thunk counts as the return or indirect jump for which the thunk stands."""
        ...

    def computed(self, parts: Sequence[Function]) -> Sequence[int]:
        """Return the targets of a function's computed jumps, as far as kinst has found their jump
        tables: addresses of instructions, ascending.

        Args:
            parts: all parts of the function, as parts() returns them.
        """
        ...

    def refused(
        self, sites: Sequence[tuple[int, int]], columns: Columns | None = None
    ) -> Sequence[bool]:
        """Return for each instruction, given as (address, size), whether the system or the ISA
        refuses to plant it.

        Args:
            columns: the same instructions as columns() returns them, if they are known.
        """
        ...

    def function_refusal(self, function: Function) -> str:
        """Return why no instruction of a function may be planted; "" if instructions may be
        planted."""
        ...

    def left_to_tracer(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Return for each instruction, given as (address, size), whether kinst leaves it to the
        kernel's own function tracer. True only with -x plant=no-callsite, and only if that tracer
        may write to the instruction."""
        ...

    def dead_ends(self) -> Sequence[str]:
        """Return the names of functions that never return to their callers."""
        ...

    def system_calls(self) -> Sequence[SystemCall]:
        """Return the kernel's system calls, sorted by name; () if its system does not know them."""
        ...

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        """Return the tracepoints whose name matches an sh(1) pattern, by subsystem and name; none
        if the kernel's system does not know them."""
        ...

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        """Return the sites of a tracepoint.  Raises KinstError, with the reason, if it cannot be
        traced."""
        ...

    def parts(self, function: Function) -> Sequence[Function]:
        """Return all parts of the function to which `function` belongs: its main part, then the
        parts that the compiler split off (NAME.cold)."""
        ...

    def at(self, address: int) -> Function | None:
        """Return the function whose code contains a running address; None if there is no such
        function. If several functions have its name, it is named as find() names it (name@2).
        """
        ...


class PlantableKernel(Kernel, Protocol):
    """The traced kernel, with the further questions that planting asks."""

    def forget(self, functions: Iterable[Function]) -> None:
        """Drop the cached instructions of these functions, to save memory. They are decoded again
        when needed."""
        ...

    def has_sequences(self, function: Function) -> bool:
        """Whether a function may have instructions whose neighbours limit how they are planted. If
        False, unsafe() returns "" and rerun_prefix() returns b"" for all of its instructions."""
        ...

    def unsafe(self, function: Function, address: int) -> str:
        """Return why the neighbours of an instruction of this function prevent planting it
        (Isa.unsafe); "" if they do not."""
        ...

    def flow_columns(self, functions: Sequence[Function]) -> tuple[Scanned, Flows]:
        """Return the live instructions of functions (as columns() does), and where control goes
        from each instruction (as flows() does for one function)."""
        ...

    def marks(self, sites: Sequence[Site]) -> U16:
        """Return the mark that Isa.scan() gives to the instruction of each site (Columns.marks), in
        the same order; 0 for an instruction without a mark."""
        ...

    def live(self, address: int, size: int) -> bytes:
        """Return bytes of the kernel's code as they are in memory now."""
        ...

    def rerun_prefix(self, function: Function, address: int) -> bytes:
        """Return the live bytes directly before an instruction that must run again if the
        instruction is planted (Isa.rerun_starts); b"" if there are none."""
        ...

    def following(self, function: Function, address: int, size: int) -> bytes:
        """Return up to `size` live bytes of the function's instructions from `address` on."""
        ...


def all_named(kernel: Kernel, name: str) -> Sequence[Function]:
    """Return all functions with exactly this name, in any module."""
    return kernel.find("", f"{name[:-1]}[{name[-1]}]")  # a glob of one name


def no_function(kernel: Kernel, module: str, function: str) -> AbsentError:
    """Return the error for a function that does not exist. The error's hint names another module
    that has a function of this name, or a similar name."""
    plain = function.partition("@")[0]
    elsewhere = all_named(kernel, plain) if module else ()
    return AbsentError(
        f'no function named "{function}"' + (f' in module "{module}"' if module else ""),
        f"it is in {elsewhere[0].module}" if elsewhere else kernel.suggest(function),
    )


@dataclass(frozen=True, slots=True)
class Timer:
    """The schedule of a timer probe (tick-N or profile-N).

    Attributes:
        period_ns: time between firings.
        each_cpu: True for profile-N, which fires on every CPU; False for tick-N, which fires on one
            CPU.
    """

    period_ns: int
    each_cpu: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A probe that matches a description, before it gets an id. If a probe has several sites, there
    is a Found for each of them.

    Attributes:
        arguments: how to find arg0, arg1, ...; () if the probe has no arguments.
        condition: the probe fires at the site only if this D expression over regs[] is true there;
            "" if it always fires.
        switch: address of the kernel's switch that leads control to the site while it is on
            (Tracepoints.switched()); 0 if control reaches the site without a switch.
        selection: how to tell which of the site's hits belong to the probe; None if all do.
        never: why the probe never fires, in words for the user; "" if it can fire.
    """

    name: ProbeName
    site: Site | None = None
    timer: Timer | None = None
    arguments: tuple[Argument, ...] = ()
    condition: str = ""
    switch: int = 0
    selection: Selection | None = None
    never: str = ""


class Provider(Protocol):
    """Base class of providers; each file of kinst.providers has a provider. Only match() must be
    defined."""

    name: str
    # Form of the names of its probes, for messages.
    usage: str
    stability: ProviderStability = ANY
    # Whether its probes are instructions of a traced kernel.
    needs_kernel: bool = True
    # Whether the function of a description is a function of the kernel, by its name.
    names_functions: bool = False
    # Properties of its probes that the D compiler must know.
    interface: ProbeInterface = ProbeInterface()

    def listed(self) -> Sequence[Found]:
        """Return the probes that -l lists when the user gives no probe description; () by
        default."""
        return ()

    def argument_types(self, pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
        """Return the types of args[] at the probe that a description names. None if these arguments
        have no types, or if the description does not name exactly one probe of this provider.

        Raises KinstError if the kernel's debug information cannot tell the types."""
        return None

    def argument_names(self, pattern: ProbePattern, types: TypeSource) -> Sequence[str]:
        """Return the names that the kernel's source gives to args[0], args[1], ... at the probe
        that a description names; () by default, and if they are not known."""
        return ()

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Iterable[Found]:
        """Yield the probes that match a description, one at a time so that the caller may stop
        early. Raises KinstError if the description names something that cannot exist.

        Args:
            kernel: the traced kernel; None if there is none.
        """
        ...
