"""The code that fires a tracepoint, in kernels without static calls.

While a tracepoint's static key is on, the key's sites lead to code that fires the tracepoint. This
code calls __traceiter_NAME(), or contains the body of this function if the compiler has inlined it
(include/linux/tracepoint.h):

    list = __tracepoint_NAME.funcs;               a load from a known address
    if (list)
        do
            list->func(list->data, arguments);
        while ((++list)->func);

Each firing reads the list once, by a load of a whole register, and no other code of the kernel
reads it from its known address. So kinst plants the load. The probe's arguments are those of the
first call in the loop, computed from the registers at the load.

Linux 5.10 also loads the list before it calls __traceiter_NAME(), and does not call it if the list
is empty. kinst plants this load, and not the second one of a firing whose __traceiter_NAME() is
inlined. Later kernels pass 0 as `data` in this call, and call always.

kinst must find every load. From the target of each site's jump it follows all paths, until they
come to code that also runs while the key is off. Each indirect call on these paths must be of one
of two kinds:

- The call in the loop above, of a list whose load kinst has seen.
- A call that cannot be in such a loop. In a loop, the function's address is loaded through a
  pointer that was itself loaded from memory, and the first argument is loaded from the next word of
  memory.

Any other indirect call, or a computed jump, may be part of a firing whose load kinst has not
recognised, so kinst refuses the tracepoint. A site that leads neither to a load nor to a call of
__traceiter_NAME() fires nothing: it is a test, `if (trace_NAME_enabled())`.

Tested by tests/systems/linux/test_tracepoints.py and tests/vm/counts/test_tracepoints.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from functools import cached_property

from kinst.core.dataclass import dataclass
from kinst.core.instruction import Flow, Instruction
from kinst.core.isa import Isa
from kinst.core.probe import Argument, Function
from kinst.core.symbolic_run import WORD, SymbolicRun, number
from kinst.core.words import COLD
from kinst.systems.linux.special_names import NEVER_RETURN
from kinst.systems.linux.static_keys import KeySite

KERNEL = "vmlinux"  # the module that is the kernel proper
_MOST_STEPS = 3000  # instructions of all paths from one site
_MOST_STEPS_BEFORE = 30_000  # instructions of all paths to one site
# In the names of code that the linker has moved out of functions and that jumps back, such as
# e843419@... for an erratum of the Cortex-A53. No name of C has it.
_LINKER = "@"
_FURTHEST = 100  # instructions from a load to the call


@dataclass(frozen=True, slots=True)
class FiringPlaces:
    """Where a tracepoint is fired.

    Attributes:
        loads: for the address of each instruction that loads the list of callbacks, how to find
            the arguments of the tracepoint just before this instruction runs. The callbacks' first
            argument, `data`, is not among them: it is the list's.
        calls: whether __traceiter_NAME() is called.
    """

    loads: Mapping[int, tuple[Argument, ...]]
    calls: bool


class UnknownFiringError(Exception):
    """Code that may fire a tracepoint in a way that kinst does not know.

    Attributes:
        address: address of an instruction of this code.
    """

    def __init__(self, address: int) -> None:
        super().__init__(f"{address:#x}")
        self.address = address


@dataclass(slots=True)
class _Search:
    """State of the search for all firings of one tracepoint.

    Attributes:
        name: the tracepoint's name.
        pointer: address of the pointer to the tracepoint's list.
        count: number of arguments of the functions in the list, with `data`.
        function: address of __traceiter_NAME().
        sites: the sites of the tracepoint's key, by address.
        loads: the loads of the list that were found so far, as in FiringPlaces.
        calls: whether a call of __traceiter_NAME() was found.
        second: addresses of loads of the list that a firing executes after another such load.
        known: addresses of the calls of listed functions, in the loops that follow the instructions
            of `loads`.
        entered: addresses of the called functions that the search has entered.
    """

    name: str
    pointer: int
    count: int
    function: int
    sites: Mapping[int, KeySite]
    loads: dict[int, tuple[Argument, ...]] = field(default_factory=dict)
    calls: bool = False
    second: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    entered: set[int] = field(default_factory=set)


class TracepointFirings:
    """The code that fires the tracepoints of a running kernel."""

    def __init__(
        self,
        isa: Isa,
        read: Callable[[int, int], bytes],
        function_at: Callable[[int], Function | None],
        branches: Callable[[int], int | None],
        tracepoints: Collection[int],
        fixups: Mapping[int, int],
        bugs: Collection[int],
    ) -> None:
        """Describe a kernel.

        Args:
            read: returns memory, by address and size.
            function_at: returns the function that contains an address.
            branches: returns the target of a static key's site, by the site's address; None if
                there is no site.
            tracepoints: addresses of the sites of all tracepoints.
            fixups: where control goes after a fault, by the address of the instruction that faults;
                without modules.
            bugs: addresses of trap instructions that end the thread (BUG).
        """
        self._isa = isa
        self._read = read
        self._function_at = function_at
        self._branches = branches
        self._tracepoints = tracepoints
        self._fixups = fixups
        self._bugs = bugs
        self._instructions: dict[int, Instruction] = {}  # of the functions so far, by address
        self._flows: dict[int, Flow] = {}
        self._loads_before_calls = False  # whether a call was found as Linux 5.10 has it

    def places(
        self, name: str, pointer: int, count: int, function: int, sites: Mapping[int, KeySite]
    ) -> FiringPlaces:
        """Return the places of all firings of a tracepoint.

        Args:
            name: the tracepoint's name.
            pointer: address of the pointer to the tracepoint's list.
            count: number of arguments of the functions in the list, with `data`.
            function: address of __traceiter_NAME().
            sites: the sites of the tracepoint's static key, by address.

        Raises:
            UnknownFiringError: some code may fire the tracepoint in a way that kinst does not know.
        """
        search = _Search(name, pointer, count, function, sites)
        for site in sites.values():
            off = self._reached(site, sites)
            off = off if site.target not in off else set()
            try:
                self._follow(search, site.target, off)
            except UnknownFiringError:
                # The address of the list may be in a register since before the site.
                begun = self._before(site, sites)
                if begun is None:
                    raise
                self._follow(search, site.target, off, begun)
        loads = {at: how for at, how in search.loads.items() if at not in search.second}
        return FiringPlaces(loads, search.calls)

    def call_of(
        self, load: Instruction, count: int, function: int = 0
    ) -> tuple[int, tuple[Argument, ...], list[int]]:
        """Find the call after a load of a tracepoint's list: the call in the loop, or that of
        __traceiter_NAME(). Return the call's address, how to find its arguments (without `data`)
        just before the load runs, and the addresses of further loads of the list before the call.

        Args:
            load: the load of the list.
            count: number of arguments of the call, with `data`.
            function: address of __traceiter_NAME(); 0 if no code calls it.

        Raises:
            UnknownFiringError: the code after the load is neither.
        """
        run, origins, one = self._run(load.address), self._run(load.address), load
        origins.ignore_stores()  # the list is not on the stack, where the code may store
        place = run.pointer_load(load)
        if place is None:
            raise UnknownFiringError(load.address)
        first, second = place.loaded(), list[int]()
        for _ in range(_FURTHEST):
            flow = self._flow(one)
            at = one.end
            if flow.kind == "call" and flow.target in (None, function):
                fits = flow.target or origins.destination(one) == first.loaded()
                if not fits or origins.passed(0) != first.plus(WORD).loaded():
                    break
                self._loads_before_calls |= flow.target is not None
                return one.address, tuple(run.argument(n) for n in range(1, count)), second
            if flow.kind == "branch":
                test = origins.zero_test(one)
                if test is None or test[0] != first:
                    break
                at = one.end if test[1] else flow.target or 0
            elif flow.kind == "jump":
                at = flow.target or 0
            elif flow.kind in ("next", "landing"):
                if one is not load and origins.pointer_load(one) == place:
                    second.append(one.address)
                run.step(one)
                origins.step(one)
            else:
                break
            after = self.instruction(at)
            if after is None:
                break
            one = after
        raise UnknownFiringError(one.address)

    def _run(self, start: int) -> SymbolicRun:
        """Return a symbolic execution that begins at an address."""
        run = self._isa.symbolic_run()
        if run is None:
            raise UnknownFiringError(start)
        return run

    def instruction(self, address: int) -> Instruction | None:
        """Return the instruction at an address; None if no function has one there."""
        one = self._instructions.get(address)
        if one is not None:
            return one
        function = self._function_at(address)
        if function is None:
            return None
        before: Instruction | None = None
        for one in self._isa.decode(self._read(function.address, function.size), function.address):
            pair = self._isa.pair_flow(before, one) if before is not None else None
            self._flows[one.address] = pair or self._isa.flow(one.code, one.address)
            self._instructions[one.address] = before = one
        return self._instructions.get(address)

    def _flow(self, one: Instruction) -> Flow:
        return self._flows[one.address]

    def _next(
        self, one: Instruction, flow: Flow, sites: Mapping[int, KeySite], *, on: bool
    ) -> Iterator[int]:
        """Yield the addresses to which control can go from an instruction, within its function or
        the function's other parts.

        Args:
            sites: sites of the tracepoint's key.
            on: whether this key is on.
        """
        if (site := sites.get(one.address)) is not None:
            yield site.target if on else one.address + site.size
            return
        if (target := self._branches(one.address)) is not None:
            yield one.end
            if one.address not in self._tracepoints:
                yield target
            return
        if flow.falls_through and one.address not in self._bugs and not self._is_last(flow):
            yield one.end
        if flow.kind in ("jump", "branch") and flow.target is not None:
            yield flow.target

    def _is_last(self, flow: Flow) -> bool:
        """Return whether an instruction calls a function that never returns. The next instruction
        belongs to other code, to which it does not lead."""
        if flow.kind != "call" or flow.target is None:
            return False
        called = self._function_at(flow.target)
        return called is not None and called.name in NEVER_RETURN

    def _reached(self, site: KeySite, sites: Mapping[int, KeySite]) -> set[int]:
        """Return the addresses of all code that can run after a site while the key is off."""
        reached, waiting = set[int](), [site.address + site.size]
        while waiting:
            at = waiting.pop()
            one = None if at in reached else self.instruction(at)
            if one is not None:
                reached.add(at)
                waiting.extend(self._next(one, self._flow(one), sites, on=False))
        return reached

    def _before(self, site: KeySite, sites: Mapping[int, KeySite]) -> SymbolicRun | None:
        """Return a symbolic execution at the target of a site's jump, with the registers that hold
        known numbers there.

        A register is known if it holds the same number at the site on every path through the
        function. Return None if kinst does not know all of these paths.
        """
        function = self._function_at(site.address)
        if function is None or function.module != KERNEL:
            return None
        states: dict[int, SymbolicRun] = {}
        waiting = [(function.address, self._run(function.address))]
        for _ in range(_MOST_STEPS_BEFORE):
            if not waiting:
                break
            at, run = waiting.pop()
            if at not in states:
                states[at] = run.copy()
            elif not states[at].join(run):
                continue
            one = self.instruction(at)
            if one is None:
                continue  # after a call that does not return
            flow, run = self._flow(one), states[at].copy()
            if flow.kind == "indirect":
                return None
            if at in self._fixups:
                unknown = run.copy()
                unknown.forget_all()
                waiting.append((self._fixups[at], unknown))
            if flow.kind == "call":
                run.call()
            else:
                run.step(one)
            after = set(self._next(one, flow, {}, on=False))
            if (target := self._branches(at)) is not None:
                after.add(target)
            waiting.extend((place, run) for place in after)
        else:
            return None
        if site.address not in states:
            return None
        begun = self._run(site.target)
        begun.take_numbers(states[site.address])
        return begun

    def _follow(
        self, search: _Search, start: int, off: set[int], begun: SymbolicRun | None = None
    ) -> None:
        """Follow all paths from an address, and add the firings to a search.

        Args:
            off: addresses of code that also runs while the key is off; paths end there.
            begun: symbolic execution at the address; None if no register is known there.
        """
        begun = begun or self._run(start)
        begun.ignore_stores()
        states: dict[int, SymbolicRun] = {}
        waiting: list[tuple[int, SymbolicRun]] = [(start, begun)]
        for _ in range(_MOST_STEPS):
            if not waiting:
                return
            at, run = waiting.pop()
            if at in off:
                continue
            if at not in states:
                states[at] = run.copy()
            elif not states[at].join(run):
                continue
            one = self.instruction(at)
            if one is None:
                raise UnknownFiringError(at)
            waiting.extend(self._step(search, one, states[at].copy()))
        raise UnknownFiringError(start)

    def _step(
        self, search: _Search, one: Instruction, run: SymbolicRun
    ) -> list[tuple[int, SymbolicRun]]:
        """Run an instruction symbolically. Return the addresses to which control can go next, each
        with the symbolic execution there."""
        if run.pointer_load(one) == number(search.pointer):
            call, arguments, second = self.call_of(one, search.count, search.function)
            search.loads[one.address] = arguments
            search.second.update(second)
            search.known.add(call)
        flow = self._flow(one)
        is_indirect = flow.kind == "call" and flow.target is None
        if flow.kind == "indirect" or (
            is_indirect and one.address not in search.known and self._may_be_of_list(run, one)
        ):
            raise UnknownFiringError(one.address)
        if flow.kind in ("call", "jump") and flow.target == search.function:
            data = run.passed(0)
            if data == number(0) or (data is None and not self._loads_before_calls):
                search.calls = True
            elif data != number(search.pointer).loaded().plus(WORD).loaded():
                raise UnknownFiringError(one.address)
            if flow.kind == "jump":
                return []
        elif (flow.kind == "call" and not is_indirect) or (
            flow.kind == "jump" and self._leaves(one, flow.target)
        ):
            self._enter(search, flow.target or 0)
            if flow.kind == "jump":
                return []
        if flow.kind == "call":
            if self._function_at(one.end) != self._function_at(one.address):
                return []  # the called function does not return
            run.call()
        else:
            run.step(one)
        return [(at, run) for at in self._next(one, flow, search.sites, on=True)]

    @cached_property
    def _frame(self) -> frozenset[str]:
        """D expressions for the registers that point into a function's frame."""
        registers = self._isa.registers
        slots = {r.slot for r in registers if r.d_name == "R_FP"} | {self._isa.sp_slot}
        return frozenset(f"regs[{r.d_name}]" for r in registers if r.slot in slots)

    def _may_be_of_list(self, run: SymbolicRun, one: Instruction) -> bool:
        """Return whether an indirect call may belong to a firing whose load kinst has not
        recognised."""
        called, data = run.destination(one), run.passed(0)
        if called is None:
            return True
        element = called.source
        if element is not None and element.term in self._frame:
            return True  # what was stored there is not known
        if called.number or element is None or element.source is None:
            return False  # since the list is loaded after the site
        return data is None or data == element.plus(WORD).loaded()

    def _leaves(self, one: Instruction, target: int | None) -> bool:
        """Return whether a jump leads to the start of another function. False if one of the two
        functions is a cold part or code of the linker, or if the target is not known (None).
        """
        there = self._function_at(target or 0)
        here = self._function_at(one.address)
        if there is None or here is None or there == here or COLD in there.name + here.name:
            return False
        if _LINKER in there.name:
            return False
        return there.address == target

    def _enter(self, search: _Search, target: int) -> None:
        """Extend the search to a called function, if it may contain code that fires the tracepoint:
        if the compiler has split it from another function, if it is one of the tracepoint's inline
        functions, or if its name says that it exists for tracepoints, as __trace_set_need_resched()
        does, which the kernel calls after it has tested the key."""
        called = self._function_at(target)
        if called is None or called.address != target or target in search.entered:
            return
        own = called.name.endswith(f"trace_{search.name}") or called.name.startswith("__trace_")
        if "." in called.name or own:
            search.entered.add(target)
            self._follow(search, target, set())
