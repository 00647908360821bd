"""The D programs that trace one call of a function, and what their records say.

Functions are found first: every function's entry is planted and counted while the traced function
runs.  Those that ran are then traced with their returns, and so are the call instructions in them
that may lead to any other function: where those ran more often than a planted function was entered
from them, the call went another way this time, and the functions that it has met have to be found.

Tested by tests/views/test_call_tree.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kinst.core.code import CodeInstruction, FunctionCode
from kinst.core.dtypes import DType, EnumType, FunctionType, IntType, PointerType, VoidType
from kinst.core.probe import Function
from kinst.core.source import SourceFunction
from kinst.core.words import MASK
from kinst.events import Aggregation, Record
from kinst.views.call_tree import CallTree, EntryRecord, ReturnRecord, build_tree
from kinst.views.counting import clause, described

ARGUMENTS = 6  # that are recorded of each call
MOST_ERROR = 4095  # a pointer from -4095 to -1 is an error number (Linux, include/linux/err.h)
PLAIN = 1 << 20  # unsigned numbers of 8 bytes are decimal up to here
FOUND, CALLS = "entered", "calls"  # aggregations
INSIDE = "self->inside"
CALLER = "trace(tid); trace(pid); trace(execname);"
FunctionKey = tuple[str, str]  # module and name
# Of each function its parts, with what is inlined in them.
InlinedParts = Mapping[FunctionKey, Sequence[SourceFunction]]


def finding_program(root: FunctionKey, condition: str, *, whole: bool) -> str:
    """Return the program that counts the functions that run in calls of `root`.

    Args:
        condition: a D predicate of the calls that are meant, or "".
        whole: count in all calls until the trace is over, rather than in the first one.
    """
    counts = f"{{ @{FOUND}[probemod, probefunc] = count(); }}"
    return _program(root, condition, f"fbt:::entry\n/{INSIDE}/\n{counts}\n", whole=whole)


def _program(root: FunctionKey, condition: str, clauses: str, *, whole: bool) -> str:
    """Return clauses that run in calls of `root`, with those that know when one does.

    A thread-local variable counts calls that are within one another.  An interrupt's handler has
    thread-local variables of its own, so that the clauses do not run there.
    """
    where = ":".join(("fbt", *root))
    begins = condition or "1"
    begins = f"{INSIDE} || ({begins})" if whole else f"{INSIDE} || (!begun && ({begins}))"
    over = "" if whole else " exit(0);"
    return (
        f"int begun;\nself int inside;\n"
        f"{where}:entry\n/{begins}/\n{{ begun = 1; {INSIDE}++; }}\n"
        f"{clauses}"
        f"{where}:return\n/{INSIDE} == 1/\n{{ {INSIDE} = 0;{over} }}\n"
        f"{where}:return\n/{INSIDE} > 1/\n{{ {INSIDE}--; }}\n"
    )


def found_functions(aggregations: Iterable[Aggregation]) -> set[FunctionKey]:
    """The functions that finding_program() has counted."""
    return {
        (str(key[0]), str(key[1])) for one in aggregations if one.name == FOUND for key in one.rows
    }


def calls_found(aggregations: Iterable[Aggregation], root: FunctionKey) -> int:
    """Return how many calls of `root` finding_program() has counted."""
    counts = (one.rows.get(root) for one in aggregations if one.name == FOUND)
    return sum(count for count in counts if isinstance(count, int))


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """Calls that led to a function whose entry was not traced.

    Attributes:
        site: the call or jump.
        target: address of the function; None if it was computed.
        name: of the function, "" if it was computed.
        count: how often.
    """

    site: CodeInstruction
    target: int | None
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class CallingThread:
    """The thread that made a call."""

    execname: str
    pid: int
    cpu: int


@dataclass(frozen=True)
class CallTracing:
    """Traces calls of one function.

    Attributes:
        root: the function.
        codes: of it and of those that run in it.
        result: the register for results, as regs[] has it.
        condition: a D predicate of the calls that are meant, or "".
        interrupt_entry: functions that begin and end interrupts.
    """

    root: FunctionKey
    codes: Sequence[FunctionCode]
    result: str
    condition: str = ""
    interrupt_entry: Sequence[Function] = ()

    @cached_property
    def _by_name(self) -> dict[FunctionKey, FunctionCode]:
        return {_name(code): code for code in self.codes}

    @cached_property
    def _function_of_part(self) -> dict[int, FunctionKey]:
        return {part.address: _name(code) for code in self.codes for part in code.parts}

    @cached_property
    def _jumps_at(self) -> frozenset[int]:
        """Addresses of all instructions of these functions but returns."""
        instructions = (one for code in self.codes for one in code.instructions)
        return frozenset(one.address for one in instructions if one.flow.kind != "return")

    @cached_property
    def _addresses(self) -> frozenset[int]:
        return frozenset(code.function.address for code in self.codes)

    @cached_property
    def _watched(self) -> dict[tuple[str, str, int], CodeInstruction]:
        """Calls that may lead to a function that is not traced, by module, part and offset."""
        return {
            (one.function.module, one.function.name, one.offset): one
            for code in self.codes
            for one in code.instructions
            if one.flow.kind == "call"
            and not one.refused
            and (one.target is None or (one.target_name and one.target not in self._addresses))
        }

    @property
    def program(self) -> str:
        """The D program: records of entries and returns, and counts of calls."""
        names = [f"fbt:{module}:{name}" for module, name in self._by_name]
        values = " ".join(f"trace(arg{k});" for k in range(ARGUMENTS))
        entered = f"trace(tid); trace((uint64_t)caller); {values}"
        left = f"trace(tid); trace(arg0); trace(regs[{self.result}]);"
        watched = ",\n".join(map(described, self._watched.values()))
        counts = f"@{CALLS}[probemod, probefunc, probename] = count();"
        clauses = [
            clause(",\n".join(f"{name}:entry" for name in names), INSIDE, entered),
            clause(",\n".join(f"{name}:return" for name in names), INSIDE, left),
            *([clause(watched, INSIDE, counts)] if watched else []),
        ]
        about = clause(":".join(("fbt", *self.root, "entry")), f"{INSIDE} == 1", CALLER)
        text = "".join(f"{one}\n" for one in (about, *clauses))
        return _program(self.root, self.condition, text, whole=False)

    def caller(self, records: Iterable[Record]) -> CallingThread | None:
        """Return the thread that made the first call; None without any."""
        met = []
        for one in records:
            match [found.value for found in one.values]:
                case [int(), int(pid), str(name)]:
                    met.append((one.time_ns, CallingThread(name, pid, one.cpu)))
        return min(met, key=lambda row: row[0])[1] if met else None

    def tree(self, records: Iterable[Record]) -> CallTree | None:
        """Build the tree of the first call of which there are records; None without any."""
        rows = sorted(self._rows(records), key=lambda row: row[1].time)
        threads = [thread for thread, row in rows if row.function == self.root]
        return build_tree(row for thread, row in rows if threads and thread == threads[0])

    def _rows(self, records: Iterable[Record]) -> Iterator[tuple[int, EntryRecord | ReturnRecord]]:
        for one in records:
            numbers = [found.value for found in one.values if isinstance(found.value, int)]
            if not numbers or len(numbers) < len(one.values):
                continue  # a clause that only knows whether the call goes on, or the caller's
            thread, *values = numbers
            name = one.probe.name
            function = name.module, name.function
            if name.name == "entry":
                back, *arguments = (value & MASK for value in values)
                yield (
                    thread,
                    EntryRecord(
                        one.cpu,
                        one.time_ns,
                        function,
                        back,
                        tuple(arguments),
                        self._interrupt(back),
                    ),
                )
            else:
                jumped = self._jumps(function, values[0])
                yield thread, ReturnRecord(one.cpu, one.time_ns, function, jumped, values[1] & MASK)

    def _interrupt(self, returns_to: int) -> FunctionKey | None:
        """Return the interrupt entry function that a call returns to; None if it is another."""
        at = returns_to - 1
        found = (f for f in self.interrupt_entry if f.address <= at < f.address + f.size)
        return next(((one.module, one.name) for one in found), None)

    def _jumps(self, function: FunctionKey, offset: int) -> bool:
        """Whether control leaves a function for another one at an offset, rather than by
        returning."""
        return self._by_name[function].function.address + offset in self._jumps_at

    def unfollowed(self, tree: CallTree, aggregations: Iterable[Aggregation]) -> list[Unfollowed]:
        """The calls that led to functions whose entry was not traced."""
        entered: dict[int, int] = {}
        shown: set[FunctionKey] = set()  # what ran in interrupts alone has calls that do not count
        for call in tree.root.walk():
            shown.add(call.function)
            for one in call.calls:
                if one.returns_to != call.returns_to:  # it was called, not jumped to
                    entered[one.returns_to] = entered.get(one.returns_to, 0) + 1
        found = []
        for table in aggregations:
            if table.name != CALLS:
                continue
            for key, count in table.rows.items():
                site = self._watched.get((str(key[0]), str(key[1]), int(str(key[2]))))
                if site is None or not isinstance(count, int):
                    continue
                if self._function_of_part[site.function.address] not in shown:
                    continue
                missing = count - entered.get(site.address + len(site.code), 0)
                if missing > 0:
                    found.append(Unfollowed(site, site.target, site.target_name, missing))
        return found


def _name(code: FunctionCode) -> FunctionKey:
    return code.function.module, code.function.name


def inlined_parts(
    codes: Iterable[FunctionCode], functions: Iterable[SourceFunction]
) -> InlinedParts:
    """What is inlined in each function, with the parts that were moved away from it."""
    by_address = {one.function.address: one for one in functions}
    return {
        _name(code): [by_address[p.address] for p in code.parts if p.address in by_address]
        for code in codes
    }


def arguments_text(values: Sequence[int], prototype: FunctionType | None) -> str:
    """Return a call's arguments as text, by their types; "" without those."""
    if prototype is None:
        return ""
    types = prototype.parameters
    shown = [value_of(value, one) for value, one in zip(values, types, strict=False)]
    return ", ".join([*shown, *["..."] * (len(types) > len(values) or prototype.variadic)])


def result_text(value: int | None, prototype: FunctionType | None) -> str:
    """Return a call's result as text; "" for a function that has none, and if it is not known."""
    if value is None or prototype is None or isinstance(prototype.result, VoidType):
        return ""
    return value_of(value, prototype.result)


def value_of(value: int, type_: DType) -> str:
    """Return a register's value as one of its type."""
    if isinstance(type_, IntType):
        bits = 8 * type_.size
        value &= (1 << bits) - 1
        if type_.signed and value >> bits - 1:
            value -= 1 << bits
        if isinstance(type_, EnumType) and (name := type_.name_of(value)) is not None:
            return name
        return str(value) if type_.signed or type_.size < 8 or value < PLAIN else f"{value:#x}"
    if isinstance(type_, PointerType) and value > MASK - MOST_ERROR:
        return str(value - MASK - 1)
    return f"{value:#x}"
