"""Values that registers had on entry to a function, computed from call sites in its callers (DWARF
5, 3.4).

DWARF describes each call site: an expression gives the value of each argument register at the call.
The expression uses only what the caller keeps during the call: call-saved registers and constants.
kinst joins the expressions of all call sites of a function to one D expression. At run time this
expression chooses a call site by the return address. If no call site has the return address (an
indirect call, a call from a module), the expression reads address 0, which fires dtrace:::ERROR.

The return address alone can mislead. A function may end with a tail call, and a chain of tail calls
may enter the function again with other arguments; the return address stays the same. As gdb does,
kinst refuses functions for which such a chain cannot be ruled out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.system import CallerRule
from kinst.image.dwarf.cfi import ROOM, Cfi, InspectedFrame
from kinst.image.dwarf.dies import Die
from kinst.image.dwarf.expressions import (
    OP_REG0,
    Base,
    ExpressionContext,
    NotHereError,
    added,
    constant,
    pieces_of,
    value_of,
)
from kinst.image.dwarf.index import Index
from kinst.image.dwarf.location_lists import Lists
from kinst.image.dwarf.numbers import (
    AT_ABSTRACT_ORIGIN,
    AT_LOW_PC,
    TAG_INLINED_SUBROUTINE,
    TAG_LEXICAL_BLOCK,
)

AT_LOCATION, AT_FRAME_BASE = 0x02, 0x40
# DWARF 5's numbers, and GNU's for DWARF 4 (where DW_AT_low_pc of a site is its return address).
TAGS_CALL_SITE, TAGS_PARAMETER = (0x48, 0x4109), (0x49, 0x410A)
AT_CALL_RETURN_PC, AT_CALL_ORIGIN = 0x7D, 0x7F
AT_CALL_VALUE, AT_GNU_CALL_SITE_VALUE = 0x7E, 0x2111
ATS_ALL_CALLS = (0x7A, 0x7C, 0x2116, 0x2117)  # all calls, or all tail calls, are described
ATS_TAIL_CALL = (0x82, 0x2115)
_BELOW = (TAG_INLINED_SUBROUTINE, TAG_LEXICAL_BLOCK)
MOST_CALLS = 60  # calls of a function: each is a comparison in the expression
MOST_TAIL_CALLS = 40  # functions to search for tail calls
UNKNOWN = "(*(uint64_t *)0)"
_NO_FRAME = "the unwinder does not know the frame here"
_ONLY_ENTRY = "only its value at the function's entry is known"


@dataclass(frozen=True)
class Caller:
    """Facts about callers that come from machine code, not from DWARF; addresses are as linked.

    Attributes:
        returns: takes a function's address; returns the return addresses of direct calls of it.
        cfi: returns the call frame information, None if there is none.
        stack: DWARF number of the stack pointer.
        preserved: DWARF numbers of the call-saved registers.
        signature: mask of the bits of a return address that may hold a pointer signature; 0 if the
            ISA has no such bits. In a return address that is not signed, all of these bits are 1.
    """

    returns: Callable[[int], Sequence[int]]
    cfi: Callable[[], Cfi | None]
    stack: int
    preserved: frozenset[int]
    signature: int


@dataclass(frozen=True)
class Entries:
    """Functions that look up debugging information entries (DIEs).

    Attributes:
        function_at: returns the DIE of the function whose code contains a linked address, or None.
        below: returns the children of a DIE.
        name: returns the name of a DIE.
        die: returns the DIE at an offset in .debug_info.
        base_of: takes a DIE; returns a lookup function, which takes an offset in the DIE's unit and
            returns the base type at this offset.
    """

    function_at: Callable[[int], Die | None]
    below: Callable[[Die], Sequence[Die]]
    name: Callable[[Die], str]
    die: Callable[[int], Die]
    base_of: Callable[[Die], Callable[[int], Base]]


class EntryValues:
    """Computes values that registers had on entry to the functions of one image, as D
    expressions."""

    def __init__(
        self,
        entries: Entries,
        lists: Lists,
        index: Index,
        names: Sequence[str],
        facts: Caller,
    ) -> None:
        """Store the sources of information.

        Args:
            entries: access to the DIEs.
            lists: access to location lists and ranges.
            index: index of the DWARF.
            names: D names of registers by DWARF number.
            facts: what the machine code tells about callers.
        """
        self._entries = entries
        self._lists = lists
        self._index = index
        self._names = names
        self._facts = facts
        self._sites: dict[int, dict[int, Die]] = {}
        self._callers: dict[int, tuple[tuple[int, Die, Die], ...]] = {}

    def entry_value(self, function: Die, frame: InspectedFrame, register: int) -> str:
        """Return a D expression for the value that a register had when a function was entered.

        Args:
            function: DIE of the function.
            frame: the instruction of the function at which the expression will be evaluated.
            register: DWARF number.

        Raises:
            NotHereError: the value is not known at this instruction.
        """
        callee = _Callee(frame, self._facts.cfi(), self._names, self._facts)
        by_value: dict[str, list[str]] = {}
        reason = _ONLY_ENTRY
        for back, caller, site in self._calls_of(function):
            try:
                code = self._passed(site, register)
                text = value_of(code, self._context(caller, site, callee, back))
            except NotHereError as error:
                reason = f"{_ONLY_ENTRY} ({error})"
                continue
            by_value.setdefault(text, []).append(constant(frame.running_address(back)))
        if not by_value:
            raise NotHereError(reason)
        came = callee.came_from()
        text = UNKNOWN
        for value, places in by_value.items():
            condition = " || ".join(f"{came} == {place}" for place in places)
            text = f"({condition} ? {value} : {text})"
        return text

    def _passed(self, site: Die, register: int) -> bytes:
        """Return the DWARF expression of the value that a call passes in a register. Raises
        NotHereError if the call site does not give it."""
        for parameter in self._entries.below(site):
            if parameter.tag in TAGS_PARAMETER:
                location = parameter.attributes.get(AT_LOCATION)
                value = parameter.attributes.get(
                    AT_CALL_VALUE, parameter.attributes.get(AT_GNU_CALL_SITE_VALUE)
                )
                if location == bytes([OP_REG0 + register]) and isinstance(value, bytes):
                    return value
        raise NotHereError("a caller's debug information does not say what it was")

    def _context(self, caller: Die, site: Die, callee: _Callee, back: int) -> ExpressionContext:
        """Return the context in which the DWARF expressions of a call site are evaluated.

        Args:
            caller: DIE of the calling function.
            site: DIE of the call site.
            callee: makes D expressions for an instruction of the called function.
            back: linked return address of the call.
        """

        def frame_base() -> str:
            code = self._lists.location(caller, AT_FRAME_BASE, back - 1)
            (piece, *more) = pieces_of(code or b"", made(no_base))
            if more:
                raise NotHereError("its caller's frame base is in pieces")
            return piece.text

        def no_base() -> str:
            raise NotHereError("its caller's frame base is not known")

        def made(base: Callable[[], str]) -> ExpressionContext:
            return ExpressionContext(
                registers=(),
                frame_base=base,
                frame_address=lambda: self._frame_address(callee, back),
                at_entry=False,
                base=self._entries.base_of(site),
                indexed=lambda index: self._lists.indexed(site, index),
                running_address=callee.frame.running_address,
                caller=callee.value,
            )

        return made(frame_base)

    def _frame_address(self, callee: _Callee, back: int) -> str:
        cfi = self._facts.cfi()
        rule = cfi.rule(back - 1) if cfi else None
        if rule is None:
            raise NotHereError("its caller's frame is not known")
        return added(callee.value(rule.register), rule.offset)

    def _calls_of(self, function: Die) -> Sequence[tuple[int, Die, Die]]:
        """Return (return address, DIE of the calling function, DIE of the call site) for each
        direct call of a function. Raises NotHereError if no calls are known, or too many."""
        if function.offset not in self._callers:
            ranges = self._lists.ranges(function)
            symbol = self._index.symbol_at(ranges[0][0]) if ranges else None
            # Callers call the symbol; DWARF's range begins after the padding for a tracer.
            if symbol is None or all(not 0 <= low - symbol[1] <= ROOM for low, _ in ranges):
                raise NotHereError(_ONLY_ENTRY)
            calls = []
            for back in self._facts.returns(symbol[1]):
                caller = self._entries.function_at(back - 1)
                site = self._sites_of(caller).get(back) if caller is not None else None
                if caller is not None and site is not None:
                    calls.append((back, caller, site))
            self._callers[function.offset] = tuple(calls)
        found_ = self._callers[function.offset]
        if len(found_) > MOST_CALLS:
            raise NotHereError(f"{_ONLY_ENTRY}, and {len(found_)} places call it")
        if not found_:
            raise NotHereError(_ONLY_ENTRY)
        self._check_tail_calls(function)
        return found_

    def _sites_of(self, function: Die) -> dict[int, Die]:
        """Return the DIEs of the call sites in a function, by return address."""
        if function.offset not in self._sites:
            sites, queue = {}, [function]
            while queue:
                for entry in self._entries.below(queue.pop()):
                    if entry.tag in TAGS_CALL_SITE:
                        sites[self._return_address(entry)] = entry
                    elif entry.tag in _BELOW:
                        queue.append(entry)
            self._sites[function.offset] = sites
        return self._sites[function.offset]

    def _return_address(self, site: Die) -> int:
        """Return the return address of a call site; 0 for a tail call, which has none."""
        for attribute in (AT_CALL_RETURN_PC, AT_LOW_PC):
            if attribute in site.attributes:
                return self._lists.address(site, attribute)
        return 0

    def _check_tail_calls(self, function: Die) -> None:
        """Raise NotHereError if a chain of tail calls may lead from a function back to itself."""
        seen, queue = {function.offset}, [function]
        while queue:
            for target in self._tail_calls(queue.pop()):
                if target.offset == function.offset or len(seen) > MOST_TAIL_CALLS:
                    raise NotHereError(f"{_ONLY_ENTRY}, and it may call itself at its end")
                if target.offset not in seen:
                    seen.add(target.offset)
                    queue.append(target)

    def _tail_calls(self, function: Die) -> Iterator[Die]:
        if not any(function.number(attribute) for attribute in ATS_ALL_CALLS):
            raise NotHereError(f"{_ONLY_ENTRY}, and its tail calls are not")
        queue = [function]
        while queue:
            for entry in self._entries.below(queue.pop()):
                if entry.tag in _BELOW:
                    queue.append(entry)
                elif entry.tag in TAGS_CALL_SITE and any(map(entry.number, ATS_TAIL_CALL)):
                    origin = entry.number(AT_CALL_ORIGIN) or entry.number(AT_ABSTRACT_ORIGIN)
                    if not origin:
                        raise NotHereError(f"{_ONLY_ENTRY}, and it ends in an indirect call")
                    yield from self._definitions(self._entries.die(origin))

    def _definitions(self, origin: Die) -> Iterator[Die]:
        """Yield the DIE of the function that a tail call leads to. If several functions have its
        name, yield the DIE of each.

        Args:
            origin: the DIE that the call site refers to. It may be a declaration without code; then
                functions with code are searched for by its name.

        Raises:
            NotHereError: no function with this name has debug information.
        """
        if self._lists.ranges(origin):
            yield origin
            return
        functions = self._index.functions(self._entries.name(origin))
        if not functions:
            raise NotHereError(
                f"{_ONLY_ENTRY}, and it ends in a call to a function without debug information"
            )
        for function in functions:
            for low, _ in function.ranges[:1]:
                die = self._entries.function_at(low)
                if die is not None:
                    yield die


class _Callee:
    """Maker of D expressions for one instruction of a called function. The expressions compute the
    return address, and the values that registers had in the caller at the call."""

    def __init__(
        self, frame: InspectedFrame, cfi: Cfi | None, names: Sequence[str], facts: Caller
    ) -> None:
        self.frame = frame
        self._cfi = cfi
        self._names = names
        self._facts = facts

    def came_from(self) -> str:
        """Return a D expression for the return address of the function. Raises NotHereError if no
        rule finds the return address at the instruction."""
        rule = self._rule(None)
        if rule.return_at is not None:
            text = f"(*(uint64_t *){added(self._cfa, rule.return_at)})"
        elif rule.return_register < len(self._names):
            text = f"regs[{self._names[rule.return_register]}]"
        else:
            raise NotHereError(_NO_FRAME)
        signature = self._facts.signature
        return f"({text} | {constant(signature)})" if signature else text

    def value(self, register: int) -> str:
        """Return a D expression for the value that a register had in the caller at the call. Raises
        NotHereError if the value cannot be found.

        Args:
            register: DWARF number.
        """
        if register == self._facts.stack:
            return self._cfa
        if register not in self._facts.preserved:
            raise NotHereError("its caller had it in a register that calls do not keep")
        rule = self._rule(register)
        if rule.return_at is None:
            return f"regs[{self._names[register]}]"
        saved = added(self._cfa, rule.return_at)
        # An interrupt may have overwritten the memory below the stack pointer.
        if rule.register != self._facts.stack:
            stack = f"regs[{self._names[self._facts.stack]}]"
            return f"({stack} <= {saved} ? (*(uint64_t *){saved}) : {UNKNOWN})"
        if rule.offset + rule.return_at < 0:
            raise NotHereError("the register that its caller had it in is not known here")
        return f"(*(uint64_t *){saved})"

    @property
    def _cfa(self) -> str:
        if self.frame.cfa is None:
            raise NotHereError(_NO_FRAME)
        return self.frame.cfa

    def _rule(self, register: int | None) -> CallerRule:
        """Return the rule that finds a value of the caller at the instruction.

        Args:
            register: DWARF number of the register whose value in the caller is wanted; None if the
                return address is wanted.

        Raises:
            NotHereError: there is no rule, or the rule's frame address is not the one that the
                kernel's unwinder gives.
        """
        rule = self._cfi.rule(self.frame.address, register) if self._cfi else None
        if rule is None:
            raise NotHereError(_NO_FRAME)
        own = f"(regs[{self._names[rule.register]}] + {rule.offset})"
        if own != self.frame.cfa:
            raise NotHereError(_NO_FRAME)
        return rule
