"""The running kernel as providers see it: functions by name, live instructions.

Tested by tests/providers and tests/test_contracts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kinst.core.dtypes import DType
from kinst.core.errors import AbsentError
from kinst.core.instruction import Flow, Instruction
from kinst.core.probe import Argument, Function, Gap, ProbeInterface, ProbeName, ProbePattern, Site
from kinst.core.stability import ANY, ProviderStability
from kinst.core.system import SystemCall
from kinst.core.types import TypeSource

if TYPE_CHECKING:
    from kinst.core.columns import U16, Flows, Scanned
    from kinst.core.isa import Isa


class Kernel(Protocol):
    """The traced kernel, as far as providers may ask about it."""

    isa: Isa

    def find(self, module: str, function: str) -> Sequence[Function]:
        """Return the functions whose module and name match the globs; two symbols of one name come
        as name@1, name@2 in address order.

        Raises KinstError, with a list, if several symbols have a plain name."""
        ...

    def suggest(self, function: str) -> str:
        """Return a hint for an unknown name, 'did you mean ...', or ""."""
        ...

    def instructions(self, function: Function) -> Sequence[Instruction]:
        """Return the live instructions of a function, in order."""
        ...

    def fetch(self, functions: Sequence[Function]) -> None:
        """Read the code of functions that will be asked for, many at once."""
        ...

    def beginning(self, function: Function) -> Sequence[Instruction]:
        """Return the first few of instructions(function)."""
        ...

    def columns(self, functions: Sequence[Function]) -> Scanned:
        """Return the live instructions of many functions, as Isa.scan() marks them."""
        ...

    def plain_exits(
        self, functions: Sequence[Function]
    ) -> Sequence[Sequence[tuple[int, bytes, bool]] | None]:
        """For each function: (address, code, whether it returns) of every instruction by which
        control leaves it, if all of these always leave it; None if that takes a look at its flows.

        Fast for many functions, of which none gets an object for each of its instructions."""
        ...

    def gaps(self, functions: Sequence[Function]) -> Sequence[Gap]:
        """Return the bytes of these functions that are in none of their instructions, except
        padding and code that the kernel has unmapped, in the order of the functions."""
        ...

    def flows(self, function: Function) -> Sequence[Flow]:
        """Return where control goes from each of instructions(function); a jump to a thunk is the
        return or indirect jump that the thunk stands for."""
        ...

    def computed(self, parts: Sequence[Function]) -> Sequence[int]:
        """Return the addresses of a whole function's instructions (its parts) that its computed
        jumps may lead to, by their tables; ascending. Those of tables that are not found are
        missing."""
        ...

    def refused(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Return, for each (address, size) of an instruction, whether the system or the ISA refuses
        it."""
        ...

    def left(self, sites: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Return, for each (address, size) of an instruction, whether it is left to the system's
        own tracer (-x plant=no-callsite)."""
        ...

    def dead_ends(self) -> Sequence[str]:
        """Return the names of functions that never return to their caller."""
        ...

    def system_calls(self) -> Sequence[SystemCall]:
        """Return the kernel's system calls, by name; none if its system does not know them."""
        ...

    def parts(self, function: Function) -> Sequence[Function]:
        """Return the whole function, its main part first, with the parts that the compiler moved
        away (NAME.cold), whichever part is given."""
        ...

    def at(self, address: int) -> Function | None:
        """Return the function whose code holds a running address, under a name that find()
        knows."""
        ...


class PlantableKernel(Kernel, Protocol):
    """The traced kernel, as planting asks about it beyond what providers do."""

    def forget(self, functions: Iterable[Function]) -> None:
        """Drop what is kept about single instructions of these functions; it is decoded again if
        needed."""
        ...

    def has_sequences(self, function: Function) -> bool:
        """Return False if unsafe() and rerun_prefix() find nothing in a function."""
        ...

    def unsafe(self, function: Function, address: int) -> str:
        """Return why the instructions around the one at address, in this function, prevent planting
        it (Isa.unsafe), or ""."""
        ...

    def flow_columns(self, functions: Sequence[Function]) -> tuple[Scanned, Flows]:
        """Return the instructions of functions, as columns() does, and where control goes from
        each, as flows() does for one function."""
        ...

    def marks(self, sites: Sequence[Site]) -> U16:
        """Return the marks of Isa.scan() for each of these instructions."""
        ...

    def live(self, address: int, size: int) -> bytes:
        """Return bytes of kernel text as they are now."""
        ...

    def rerun_prefix(self, function: Function, address: int) -> bytes:
        """Return the live bytes before the instruction at address that must run again if it is
        planted (Isa.rerun_starts), or b""."""
        ...

    def following(self, function: Function, address: int, size: int) -> bytes:
        """Return at most `size` live bytes from `address` on, within the function's
        instructions."""
        ...


def all_named(kernel: Kernel, name: str) -> Sequence[Function]:
    """Return the functions of exactly this name in any module, also if several have it."""
    return kernel.find("", f"{name[:-1]}[{name[-1]}]")  # a glob of one name


def no_function(kernel: Kernel, module: str, function: str) -> AbsentError:
    """Return the error for a function that does not exist: where it is, or which one may be
    meant."""
    plain = function.partition("@")[0]
    elsewhere = all_named(kernel, plain) if module else ()
    return AbsentError(
        f'no function named "{function}"' + (f' in module "{module}"' if module else ""),
        f"it is in {elsewhere[0].module}" if elsewhere else kernel.suggest(function),
    )


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer.

    Attributes:
        period_ns: between firings.
        each_cpu: profile-N (every CPU) rather than tick-N (one).
    """

    period_ns: int
    each_cpu: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A probe that a description matches, before it has an id; one with several sites comes once
    for each.

    Attributes:
        arguments: arg0...; () if args mean nothing.
        condition: a D expression over regs[] that is true if the instruction at the site does what
            the probe is for; "" if it always does.
    """

    name: ProbeName
    site: Site | None = None
    timer: Timer | None = None
    arguments: tuple[Argument, ...] = ()
    condition: str = ""


class Provider(Protocol):
    """The class that a file of kinst.providers offers; everything but match() has a default."""

    name: str
    # How its probes are named, for messages.
    usage: str
    stability: ProviderStability = ANY
    # Whether its probes are instructions of a traced kernel.
    needs_kernel: bool = True
    # What D must know about its probes.
    interface: ProbeInterface = ProbeInterface()

    def listed(self) -> Sequence[Found]:
        """Return the probes that exist without a description (for -l with nothing named)."""
        return ()

    def argument_types(self, pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
        """Return the types of args[] at the probe that a description means; None if it means none
        of this provider's, or several, or they have no types.

        Raises KinstError if the kernel's types do not tell."""
        return None

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Iterable[Found]:
        """Yield the probes that pattern means, perhaps one by one as they are needed. Raises
        KinstError if it names something impossible."""
        ...
