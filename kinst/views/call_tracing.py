"""D programs that trace one call of a function with everything that it calls, and decoding of their
results (for `kinst flow`).

Two programs run one after the other:

The first program plants the entry of every function, to find the functions that run in calls of the
traced function.

The second program records entries and returns of the functions that were found. It also counts call
instructions in them that may lead to other functions. If such an instruction ran more often than it
led to a recorded entry, it called a function that is not traced yet. These functions are added, and
the second program traces another call.

Tested by tests/views/test_call_tree.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from kinst.core.code import CodeInstruction, FunctionCode
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType, EnumType, FunctionType, IntType, PointerType, VoidType
from kinst.core.probe import Function
from kinst.core.source import SourceFunction
from kinst.core.words import MASK
from kinst.events import Aggregation, Record
from kinst.views.call_tree import CallTree, EntryRecord, ReturnRecord, build_tree
from kinst.views.counting import clause, described

ARGUMENTS = 6  # number of arguments that are recorded of each call
MOST_ERROR = 4095  # a pointer from -4095 to -1 is an error number (Linux, include/linux/err.h)
PLAIN = 1 << 20  # unsigned 8-byte numbers below this are printed in decimal
FOUND, CALLS = "entered", "calls"  # names of aggregations
INSIDE = "self->inside"
CALLER = "trace(tid); trace(pid); trace(execname);"
FunctionKey = tuple[str, str]  # module and name
# Debug information of each function: one SourceFunction per part, with its inlined copies.
InlinedParts = Mapping[FunctionKey, Sequence[SourceFunction]]


def finding_program(root: FunctionKey, condition: str, *, whole: bool) -> str:
    """Return the D program that counts the functions that run in calls of `root`.

    Args:
        root: the traced function.
        condition: a D predicate that selects calls of `root`; "" selects all calls.
        whole: True to count in all selected calls; False to count only in the first one, whose
            return ends the trace.
    """
    counts = f"{{ @{FOUND}[probemod, probefunc] = count(); }}"
    return _program(root, condition, f"fbt:::entry\n/{INSIDE}/\n{counts}\n", whole=whole)


def _program(root: FunctionKey, condition: str, clauses: str, *, whole: bool) -> str:
    """Return a D program: the given clauses, and clauses that set self->inside to the number of
    calls of `root` that the thread is in.

    Only calls that the condition selects count, and calls nested in them. An interrupt handler has
    thread-local variables of its own, so self->inside is 0 in the handler.

    Args:
        clauses: D text; their predicates test self->inside.
        condition: a D predicate that selects calls of `root`; "" selects all calls.
        whole: True to trace all selected calls; False to trace only the first one, whose return
            ends the trace.
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
    """Return the functions that the program of finding_program() has counted."""
    return {
        (str(key[0]), str(key[1])) for one in aggregations if one.name == FOUND for key in one.rows
    }


def calls_found(aggregations: Iterable[Aggregation], root: FunctionKey) -> int:
    """Return how many calls of `root` the program of finding_program() has counted."""
    counts = (one.rows.get(root) for one in aggregations if one.name == FOUND)
    return sum(count for count in counts if isinstance(count, int))


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A call instruction that called a function whose entry was not traced.

    Attributes:
        site: the call instruction.
        target: address of the called function; None for an indirect call.
        name: name of the called function; "" for an indirect call.
        count: how many of its calls were not traced.
    """

    site: CodeInstruction
    target: int | None
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class CallingThread:
    """The thread that made the traced call, and the CPU that it ran on."""

    execname: str
    pid: int
    cpu: int


@dataclass(frozen=True)
class CallTracing:
    """The D program that traces one call of a function, and decoding of its results.

    Attributes:
        root: the function.
        codes: instructions of `root` and of each function to trace in its calls.
        result: D name of the register in which a function returns its result, such as R_RAX.
        condition: a D predicate that selects calls of `root`; "" selects all calls. The first
            selected call is traced.
        interrupt_entry: kernel functions that run at the start or end of an interrupt. Functions
            that they call are left out of the tree.
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
        """Addresses of all instructions of the traced functions except return instructions. Control
        that leaves a function at such an address leaves it by a tail call.
        """
        instructions = (one for code in self.codes for one in code.instructions)
        return frozenset(one.address for one in instructions if one.flow.kind != "return")

    @cached_property
    def _addresses(self) -> frozenset[int]:
        return frozenset(code.function.address for code in self.codes)

    @cached_property
    def _watched(self) -> dict[tuple[str, str, int], CodeInstruction]:
        """Call instructions that may call a function that is not traced: by module, name of the
        function (or of its split-off part, such as F.cold) and offset.
        """
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
        """Text of the D program, which records entries and returns of the traced functions and
        counts the watched call instructions."""
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
        """Return the thread that made the first traced call; None if no call was traced."""
        met = []
        for one in records:
            match [found.value for found in one.values]:
                case [int(), int(pid), str(name)]:
                    met.append((one.time_ns, CallingThread(name, pid, one.cpu)))
        return min(met, key=lambda row: row[0])[1] if met else None

    def tree(self, records: Iterable[Record]) -> CallTree | None:
        """Return the tree of the first traced call; None if no call was traced."""
        rows = sorted(self._rows(records), key=lambda row: row[1].time)
        threads = [thread for thread, row in rows if row.function == self.root]
        return build_tree(row for thread, row in rows if threads and thread == threads[0])

    def _rows(self, records: Iterable[Record]) -> Iterator[tuple[int, EntryRecord | ReturnRecord]]:
        for one in records:
            numbers = [found.value for found in one.values if isinstance(found.value, int)]
            if not numbers or len(numbers) < len(one.values):
                continue  # a record of the caller, or of a clause that updates self->inside
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
        """Return the interrupt entry function that contains a return address; None if the address
        is in another function."""
        at = returns_to - 1
        found = (f for f in self.interrupt_entry if f.address <= at < f.address + f.size)
        return next(((one.module, one.name) for one in found), None)

    def _jumps(self, function: FunctionKey, offset: int) -> bool:
        """Return whether control that leaves a function at an offset leaves it by a tail call (a
        jump to another function), rather than by a return instruction.
        """
        return self._by_name[function].function.address + offset in self._jumps_at

    def unfollowed(self, tree: CallTree, aggregations: Iterable[Aggregation]) -> list[Unfollowed]:
        """Return the call instructions that called functions whose entry was not traced.

        Args:
            tree: tree of the traced call.
            aggregations: results of the trace that gave the tree.
        """
        entered: dict[int, int] = {}
        shown: set[FunctionKey] = set()  # not functions that ran in interrupts only
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
    """Return the debug information of the parts of each function: its main part, and parts that the
    compiler moved away (such as F.cold).

    Args:
        codes: the functions.
        functions: debug information of all parts, in any order. A part that is missing here is left
            out.
    """
    by_address = {one.function.address: one for one in functions}
    return {
        _name(code): [by_address[p.address] for p in code.parts if p.address in by_address]
        for code in codes
    }


def declared_at(function: FunctionKey, parts: InlinedParts) -> str:
    """Return the source file and line of a function if several functions of its module have its
    name (NAME@1); "" for other functions, and if no debug information tells it."""
    if "@" not in function[1]:
        return ""
    return next((f"{one.file}:{one.line}" for one in parts.get(function, ()) if one.file), "")


def arguments_text(values: Sequence[int], prototype: FunctionType | None) -> str:
    """Return the arguments of a call as text, by the types of the function's parameters; "" if the
    prototype is not known.

    Args:
        values: values of the argument registers.
        prototype: type of the function; None if it is not known.
    """
    if prototype is None:
        return ""
    types = prototype.parameters
    shown = [value_of(value, one) for value, one in zip(values, types, strict=False)]
    return ", ".join([*shown, *["..."] * (len(types) > len(values) or prototype.variadic)])


def result_text(value: int | None, prototype: FunctionType | None) -> str:
    """Return the result of a call as text; "" if the function returns nothing, or if the result or
    the function's type is not known."""
    if value is None or prototype is None or isinstance(prototype.result, VoidType):
        return ""
    return value_of(value, prototype.result)


def value_of(value: int, type_: DType) -> str:
    """Return the text of a register's value as a C value of this type."""
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
