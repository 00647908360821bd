"""Local variables and parameters at an instruction, from DWARF (DWARF 5, sections 2.6 and 3.5).

A name is searched for in the innermost block that contains the instruction, then outwards up to the
block's function (inlined or not), then in the functions that this function is inlined in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType
from kinst.core.locals import Local, LocalPiece
from kinst.core.words import stem_of
from kinst.image.dwarf.cfi import ROOM, InspectedFrame
from kinst.image.dwarf.dies import Die, Dies
from kinst.image.dwarf.entry_values import Caller, Entries, EntryValues
from kinst.image.dwarf.expressions import (
    GENERIC,
    Base,
    ExpressionContext,
    NotHereError,
    constant,
    pieces_of,
)
from kinst.image.dwarf.index import Index
from kinst.image.dwarf.location_lists import Lists
from kinst.image.dwarf.numbers import (
    AT_ABSTRACT_ORIGIN,
    AT_BYTE_SIZE,
    AT_DECLARATION,
    AT_NAME,
    AT_SPECIFICATION,
    TAG_INLINED_SUBROUTINE,
    TAG_LEXICAL_BLOCK,
    TAG_SUBPROGRAM,
    TAG_VARIABLE,
)
from kinst.image.dwarf.types import (
    AT_CONST_VALUE,
    AT_ENCODING,
    SIGNED_ENCODINGS,
    TAG_PARAMETER,
    DwarfTypes,
)

AT_LOCATION, AT_FRAME_BASE = 0x02, 0x40
_SCOPES = (TAG_LEXICAL_BLOCK, TAG_INLINED_SUBROUTINE)


@dataclass(frozen=True, slots=True)
class _Scope:
    """A function or block that contains an instruction.

    Attributes:
        die: DIE of the function or block.
        function: name of the function, or of the block's function.
    """

    die: Die
    function: str


class DwarfLocals:
    """Local variables and parameters of one image's functions: names, types and locations at an
    instruction."""

    def __init__(
        self,
        dies: Dies,
        lists: Lists,
        index: Index,
        types: DwarfTypes,
        registers: Sequence[str],
        caller: Caller | None = None,
    ) -> None:
        """Store the sources of information.

        Args:
            dies: access to DIEs.
            lists: access to location lists and ranges.
            index: index of the DWARF.
            types: D types of the DWARF.
            registers: D names by DWARF number.
            caller: what the machine code tells about callers, for values that only a caller has;
                None if that is not known.
        """
        self._dies = dies
        self._lists = lists
        self._index = index
        self._types = types
        self._registers = registers
        self._functions: dict[int, list[tuple[int, int, int]]] = {}
        self._calls: EntryValues | None = None
        if caller is not None:
            entries = Entries(
                lambda at: self._function_at("", at), self._below, self._name, dies.die,
                self._base_of,
            )  # fmt: skip
            self._calls = EntryValues(entries, lists, index, registers, caller)
        self._own: dict[int, list[Die]] = {}
        self._children: dict[int, tuple[Die, ...]] = {}

    def names(self, name: str, address: int, inlined: str = "") -> list[str]:
        """Return the names of the variables in scope at an instruction, innermost scope first.

        Args:
            name: symbol of the function that contains the instruction.
            address: the instruction's linked address.
            inlined: name of an inlined function: begin with the scope of its copy instead of the
                innermost block, if the instruction is in a copy of it. "" to begin with the
                innermost block.
        """
        names: dict[str, None] = {}
        address = self._described(name, address)
        scopes = self._copy_scopes(name, address, inlined) if inlined else []
        for scope in scopes or self._scopes(name, address):
            for die in self._variables(scope.die):
                names.setdefault(self._name(die), None)
        return [n for n in names if n]

    def find(
        self, name: str, frame: InspectedFrame, variable: str, inlined: str = ""
    ) -> Local | None:
        """Return the variable of this name that is in scope at an instruction; None if no variable
        has the name.

        Args:
            name: symbol of the function that contains the instruction.
            frame: the instruction.
            variable: name of the variable.
            inlined: name of an inlined function: begin with the scope of its copy instead of the
                innermost block, if the instruction is in a copy of it. "" to begin with the
                innermost block.

        Raises:
            KinstError: the debug information is damaged.
        """
        frame = replace(frame, address=self._described(name, frame.address))
        scopes = self._scopes(name, frame.address)
        if inlined:
            scopes = self._copy_scopes(name, frame.address, inlined) or scopes
        for at, scope in enumerate(scopes):
            # The last variable of a name hides the others.
            for die in reversed(self._variables(scope.die)):
                if self._name(die) == variable:
                    return self._local(die, scope, scopes[at:], frame)
        return None

    def type_in(self, function: str, variable: str) -> DType | None:
        """Return the type of a variable of this name anywhere in a function, or in code that is
        inlined in it; None if there is no such variable.

        It serves to check a D program's use of a local variable before it is known at which
        instructions the program's probes are."""
        for die in self._declared(function):
            if self._name(die) == variable:
                return self._types.of(die)
        return None

    def names_in(self, function: str) -> list[str]:
        """Return the names of all variables of a function and of the code inlined in it, each once;
        the names of the outermost block come first."""
        names = (self._name(die) for die in self._declared(function))
        return list(dict.fromkeys(filter(None, names)))

    def _declared(self, function: str) -> Iterator[Die]:
        """Yield the DIEs of the variables and parameters of a function and of the code inlined in
        it; the outermost block's come first.

        Args:
            function: the function's name, or the symbol of a clone of it (NAME.isra.0).
        """
        functions = self._index.functions(function) or self._index.functions(stem_of(function))
        for found in functions:
            queue = [self._dies.die(found.die)]
            while queue:
                die = queue.pop(0)
                for child in self._below(die):
                    if child.tag in (TAG_PARAMETER, TAG_VARIABLE):
                        yield child
                    elif child.tag in _SCOPES:
                        queue.append(child)
                origin = die.number(AT_ABSTRACT_ORIGIN)
                if origin and die.tag in (TAG_SUBPROGRAM, TAG_INLINED_SUBROUTINE):
                    queue.append(self._dies.die(origin))

    # Scopes

    def _scopes(self, name: str, address: int) -> list[_Scope]:
        """Return the functions and blocks that contain an instruction, innermost first.

        Args:
            name: symbol of the outermost function.
            address: the instruction's linked address.
        """
        die = self._function_at(name, address)
        scopes: list[_Scope] = []
        function = ""
        while die is not None:
            if die.tag != TAG_LEXICAL_BLOCK:
                function = self._name(die)
            scopes.insert(0, _Scope(die, function))
            die = next(
                (
                    child
                    for child in self._below(die)
                    if child.tag in _SCOPES and self._holds(child, address)
                ),
                None,
            )
        return scopes

    def _copy_scopes(self, name: str, address: int, inlined: str) -> list[_Scope]:
        """Return the scopes of an inlined copy, from the copy itself outwards; [] if there is no
        such copy.

        Args:
            name: symbol of the function that contains the instruction.
            address: linked address of an instruction of the copy, or of the copy's entry. The entry
                may lie outside of the copy's instructions; it is then found by an empty range that
                DWARF gives at the entry.
            inlined: name of the inlined function.
        """
        top = self._function_at(name, address)
        ways = [[_Scope(top, self._name(top))]] if top is not None else []
        while ways:
            way = ways.pop()
            for child in self._below(way[0].die):
                if child.tag not in _SCOPES or not self._reaches(child, address):
                    continue
                block = child.tag == TAG_LEXICAL_BLOCK
                scope = _Scope(child, way[0].function if block else self._name(child))
                if not block and scope.function == inlined:
                    return [scope, *way]
                ways.append([scope, *way])
        return []

    def _reaches(self, die: Die, address: int) -> bool:
        return self._holds(die, address) or any(
            low == address for low, _ in self._lists.ranges(die)
        )

    def _holds(self, die: Die, address: int) -> bool:
        ranges = self._lists.ranges(die)
        # A block without ranges of its own holds what the blocks below it hold.
        if not ranges and die.tag == TAG_LEXICAL_BLOCK:
            return any(c.tag in _SCOPES and self._holds(c, address) for c in self._below(die))
        return any(low <= address < high for low, high in ranges)

    def _described(self, name: str, address: int) -> int:
        """Return the address at which to look up an instruction's variables in DWARF.

        This is usually the instruction's own address. But a function may begin with nops that the
        compiler inserts for a function tracer, and the function's ranges in DWARF do not include
        them. For one of these nops, return the first address after the nops: the variables
        are the same there.
        """
        symbol = self._index.symbol_at(address)
        if symbol is None or self._function_at(name, address) is not None:
            return address
        for at in range(address + 1, address + ROOM + 1):
            if self._index.symbol_at(at) == symbol and self._function_at(name, at) is not None:
                return at
        return address

    def _function_at(self, name: str, address: int) -> Die | None:
        """Return the DIE of the function whose out-of-line code contains an address; None if it is
        not known.

        Args:
            name: the function's symbol.
        """
        plain = stem_of(name)
        symbol = self._index.symbol_at(address)
        names = dict.fromkeys([plain, stem_of(symbol[0]) if symbol else plain])
        for spelling in names:
            for function in self._index.functions(spelling):
                if any(low <= address < high for low, high in function.ranges):
                    own = self._dies.die(function.die)
                    if any(low <= address < high for low, high in self._lists.ranges(own)):
                        return own
                    return self._in_unit(function.unit, address)
        # An alias, or a name that the debug information lacks: use the unit of code inlined there.
        for copy in self._index.copies_at(address):
            return self._in_unit(copy.unit, address)
        return None

    def _in_unit(self, unit: int, address: int) -> Die | None:
        if unit not in self._functions:
            top = self._dies.die(self._dies.first_of(unit))
            self._functions[unit] = [
                (low, high, die.offset)
                for die in self._dies.children_with(top, TAG_SUBPROGRAM)
                for low, high in self._lists.ranges(die)
            ]
        for low, high, offset in self._functions[unit]:
            if low <= address < high:
                return self._dies.die(offset)
        return None

    def _below(self, die: Die) -> tuple[Die, ...]:
        if die.offset not in self._children:
            self._children[die.offset] = tuple(self._dies.children(die))
        return self._children[die.offset]

    # Variables

    def _variables(self, die: Die) -> list[Die]:
        if die.offset not in self._own:
            variables = [c for c in self._below(die) if c.tag in (TAG_PARAMETER, TAG_VARIABLE)]
            named = {self._name(c) for c in variables}
            # Static variables of the abstract instance come first: later ones hide them.
            left = [c for c in self._inherited(die) if self._name(c) not in named]
            self._own[die.offset] = [*left, *variables]
        return self._own[die.offset]

    def _inherited(self, die: Die) -> list[Die]:
        """Return the DIEs of static variables that a function or block lacks itself, but that its
        abstract instance has.

        If several of these variables have the same name, none of them is returned: the debug
        information does not say which variable is meant.
        """
        origin = die.number(AT_ABSTRACT_ORIGIN)
        if not origin:
            return []
        concrete = {c.number(AT_ABSTRACT_ORIGIN) for c in self._below(die)}
        queue, variables = [self._dies.die(origin)], list[Die]()
        while queue:
            for child in self._below(queue.pop()):
                if child.offset in concrete:
                    continue
                if child.tag == TAG_LEXICAL_BLOCK:
                    queue.append(child)
                elif child.tag == TAG_VARIABLE and AT_LOCATION in child.attributes:
                    variables.append(child)
        names = [self._name(c) for c in variables]
        return [c for c, name in zip(variables, names, strict=True) if names.count(name) == 1]

    def _origins(self, die: Die) -> Iterator[Die]:
        """Yield a DIE and then its abstract origins or declarations, which have the attributes that
        the DIE lacks."""
        for _ in range(8):
            yield die
            origin = die.number(AT_ABSTRACT_ORIGIN) or die.number(AT_SPECIFICATION)
            if not origin:
                return
            die = self._dies.die(origin)

    def _name(self, die: Die) -> str:
        return next((d.text(AT_NAME) for d in self._origins(die) if AT_NAME in d.attributes), "")

    def _local(
        self, die: Die, scope: _Scope, scopes: Sequence[_Scope], frame: InspectedFrame
    ) -> Local:
        name, type_ = self._name(die), self._types.of(die)
        try:
            pieces = self._pieces(die, scopes, frame)
        except NotHereError as error:
            return Local(name, type_, scope.function, (), str(error))
        return Local(name, type_, scope.function, pieces)

    def _pieces(
        self, die: Die, scopes: Sequence[_Scope], frame: InspectedFrame
    ) -> tuple[LocalPiece, ...]:
        for source in self._origins(die):
            if AT_LOCATION in source.attributes:
                code = self._lists.location(source, AT_LOCATION, frame.address)
                return pieces_of(code or b"", self._context(source, scopes, frame))
            if AT_CONST_VALUE in source.attributes:
                value = source.attributes[AT_CONST_VALUE]
                if isinstance(value, bytes) and len(value) <= 8:
                    value = int.from_bytes(value, "little")
                if isinstance(value, int):
                    return (LocalPiece("value", constant(value)),)
                raise NotHereError("it is a constant of more than 8 bytes")
            if source.number(AT_DECLARATION):
                raise NotHereError("it is declared here and defined elsewhere: `name reads it")
        raise NotHereError("it is optimised out")

    def _context(
        self, die: Die, scopes: Sequence[_Scope], frame: InspectedFrame
    ) -> ExpressionContext:
        return ExpressionContext(
            registers=self._registers,
            frame_base=lambda: self._frame_base(scopes, frame),
            frame_address=lambda: _cfa(frame),
            at_entry=frame.at_entry,
            base=self._base_of(die),
            indexed=lambda index: self._lists.indexed(die, index),
            running_address=frame.running_address,
            entry=self._entry(scopes[-1].die, frame),
        )

    def _entry(self, function: Die, frame: InspectedFrame) -> Callable[[int], str] | None:
        calls = self._calls
        return None if calls is None else lambda n: calls.entry_value(function, frame, n)

    def _frame_base(self, scopes: Sequence[_Scope], frame: InspectedFrame) -> str:
        """Return the frame base of the out-of-line function as D text; the functions inlined in it
        have the same frame base."""
        function = scopes[-1].die
        code = self._lists.location(function, AT_FRAME_BASE, frame.address)
        (piece, *more) = pieces_of(code or b"", self._context(function, scopes, frame))
        if more:
            raise NotHereError("its frame base is in pieces")
        return piece.text

    def _base_of(self, die: Die) -> Callable[[int], Base]:
        def base(offset: int) -> Base:
            if not offset:
                return GENERIC
            entry = self._dies.die(die.unit.offset + offset)
            size = entry.number(AT_BYTE_SIZE)
            if size not in (1, 2, 4, 8):
                raise NotHereError("its location needs a number that D does not compute with")
            return Base(size, entry.number(AT_ENCODING) in SIGNED_ENCODINGS)

        return base


def _cfa(frame: InspectedFrame) -> str:
    if frame.cfa is None:
        raise NotHereError(
            "it is in the stack frame, and the unwinder does not know the frame here"
        )
    return frame.cfa
