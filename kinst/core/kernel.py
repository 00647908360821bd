"""The running kernel as providers see it: functions by name, live instructions.

Tested by tests/providers and tests/test_contracts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kinst.core.columns import U16, Flows, Scanned
from kinst.core.dtypes import DType
from kinst.core.errors import AbsentError
from kinst.core.instruction import Flow, Instruction
from kinst.core.isa import Isa
from kinst.core.probe import Argument, Function, Gap, ProbeInterface, ProbeName, ProbePattern, Site
from kinst.core.stability import ANY, ProviderStability
from kinst.core.system import SystemCall
from kinst.core.types import TypeSource


class Kernel(Protocol):
    """What a provider may ask of the traced kernel."""

    isa: Isa

    def find(self, module: str, function: str) -> Sequence[Function]:
        """Functions whose module and name match the globs; two symbols of one name come as
        name@1, name@2 in address order.  A plain name that several symbols have raises
        KinstError and lists them."""
        ...

    def suggest(self, function: str) -> str:
        """A hint for an unknown name: 'did you mean ...', or ""."""
        ...

    def instructions(self, function: Function) -> Sequence[Instruction]:
        """The live instructions of a function, in order."""
        ...

    def fetch(self, functions: Sequence[Function]) -> None:
        """Read the code of functions that will be asked for, many at once."""
        ...

    def beginning(self, function: Function) -> Sequence[Instruction]:
        """The first few of instructions(function)."""
        ...

    def columns(self, functions: Sequence[Function]) -> Scanned:
        """The live instructions of many functions at once, as Isa.scan marks them."""
        ...

    def gaps(self, functions: Sequence[Function]) -> Sequence[Gap]:
        """The bytes of these functions that are in none of their instructions, except padding
        and code that the kernel has unmapped.  In the order of the functions."""
        ...

    def flows(self, function: Function) -> Sequence[Flow]:
        """Where control goes from each of instructions(function); a jump to a thunk that
        stands for a return or an indirect jump is that."""
        ...

    def computed(self, parts: Sequence[Function]) -> Sequence[int]:
        """Addresses of instructions of a whole function (its parts) to which its computed jumps
        may go, by their tables; ascending.  Where a table is not found those are missing."""
        ...

    def refused(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """For each (address, size) of an instruction: whether it cannot be planted, as the
        system or the ISA says."""
        ...

    def left(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """For each (address, size) of an instruction: whether it is left to the system's own
        tracer (-x plant=no-callsite)."""
        ...

    def dead_ends(self) -> Sequence[str]:
        """Names of functions that never return to their caller."""
        ...

    def system_calls(self) -> Sequence[SystemCall]:
        """The kernel's system calls, by name; none if its system does not know them."""
        ...

    def parts(self, function: Function) -> Sequence[Function]:
        """The whole function, first its main part: with those that the compiler moved away
        from it (NAME.cold), wherever one of them is given."""
        ...

    def at(self, address: int) -> Function | None:
        """The function whose code holds a running address, under a name that find() knows."""
        ...


class LiveKernel(Kernel, Protocol):
    """What planting asks of the traced kernel, beyond what providers do."""

    def forget(self, functions: Iterable[Function]) -> None:
        """Drop what is kept of these functions' instructions, one by one; it is found again."""
        ...

    def has_sequences(self, function: Function) -> bool:
        """False where unsafe() and rerun_prefix() say nothing of any instruction of a function."""
        ...

    def unsafe(self, function: Function, address: int) -> str:
        """Why the instructions around the one at address, in this function, do not let it be
        planted (Isa.unsafe), or ""."""
        ...

    def flow_columns(self, functions: Sequence[Function]) -> tuple[Scanned, Flows]:
        """The instructions of functions, as columns() has them, and where control goes from each
        of them, as flows() says it of one function."""
        ...

    def marks(self, sites: Sequence[Site]) -> U16:
        """What Isa.scan marks of each of these instructions."""
        ...

    def live(self, address: int, size: int) -> bytes:
        """Bytes of kernel text as they are now."""
        ...

    def rerun_prefix(self, function: Function, address: int) -> bytes:
        """The live bytes before the instruction at address that must be run again when it is
        planted (Isa.rerun_starts), or b""."""
        ...

    def following(self, function: Function, address: int, size: int) -> bytes:
        """At most `size` live bytes from `address` on, within the function's instructions."""
        ...


def all_named(kernel: Kernel, name: str) -> Sequence[Function]:
    """The functions of exactly this name, of any module, also where several have it."""
    return kernel.find("", f"{name[:-1]}[{name[-1]}]")  # a glob of one name


def no_function(kernel: Kernel, module: str, function: str) -> AbsentError:
    """The error for a function that is not there: where it is, or what it may have been."""
    plain = function.partition("@")[0]
    elsewhere = all_named(kernel, plain) if module else ()
    return AbsentError(
        f'no function named "{function}"' + (f' in module "{module}"' if module else ""),
        f"it is in {elsewhere[0].module}" if elsewhere else kernel.suggest(function),
    )


@dataclass(frozen=True, slots=True)
class Timer:
    """period_ns between firings; each_cpu: profile-N (every CPU) rather than tick-N (one)."""

    period_ns: int
    each_cpu: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A probe that a description means, before it has an id; one with several sites comes
    once for each.

    arguments: arg0...; () where args mean nothing.  condition: a D expression over regs[] that
    is true when the instruction at the site does what the probe is for; "" when it always does.
    """

    name: ProbeName
    site: Site | None = None
    timer: Timer | None = None
    arguments: tuple[Argument, ...] = ()
    condition: str = ""


class Provider(Protocol):
    """What a file of kinst.providers offers, as a class of its own; what it does not say is as
    here."""

    name: str
    # For people: how its probes are named.
    usage: str
    stability: ProviderStability = ANY
    # Whether its probes are instructions of a traced kernel.
    needs_kernel: bool = True
    # What D has to know of its probes.
    interface: ProbeInterface = ProbeInterface()

    def listed(self) -> Sequence[Found]:
        """The probes that exist without being asked for (for -l with nothing named)."""
        return ()

    def argument_types(self, pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
        """The types of args[] at the probe that a description means; None if it means none of this
        provider's, or several, or they have no types.  Raises KinstError if the kernel's types do
        not tell."""
        return None

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Iterable[Found]:
        """The probes that pattern means; KinstError where it names what cannot be.  They may be
        worked out one by one, as they are asked for."""
        ...
