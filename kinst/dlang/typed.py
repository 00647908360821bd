"""The typed tree: what the checker makes of a D program, and what codegen and the consumer read.

Every expression carries its type; conversions are explicit Cast nodes, so that codegen never
converts by itself: both operands of a Binary have the same type (shifts excepted), and the
result of comparisons and logical operators is INT (Dynamic Tracing Guide, ch. 2).  Strings are
never cast: types that differ only in StringType.size are the same here.  Expressions whose
operands are all integer constants are folded to one IntConst.  No tree is higher than
walk.MAX_HEIGHT, so that recursion over it is safe."""

from __future__ import annotations

from dataclasses import dataclass, field

from kinst.core.dtypes import ArrayType, DType, IntType, StringType, StructType
from kinst.core.errors import Span
from kinst.core.probe import Crossing, ProbePattern


@dataclass(frozen=True, slots=True)
class FormatPart:
    """One piece of a printf format.

    literal: text before the conversion (escapes and %% already done).  conversion: "" for the
    trailing literal, else the conversion letter without length modifiers ("d", "x", "s",
    "Y", ...), with "@" before it where printa() prints the aggregated value ("@d").  flags,
    width, precision as written; "*" stands for an argument of its own, which then comes before
    the value in the argument list.
    """

    literal: bytes
    conversion: str = ""
    flags: str = ""
    width: int | str | None = None
    precision: int | str | None = None
    size: int = 0  # bytes of the converted integer by its argument's type; 0: not an integer


@dataclass(frozen=True, slots=True)
class Format:
    text: str
    parts: tuple[FormatPart, ...]


@dataclass(frozen=True, slots=True)
class AggFunction:
    """count sum min max avg stddev quantize lquantize llquantize.

    params: lquantize (base, limit, step); llquantize (factor, low, high, nsteps).
    """

    name: str
    params: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation variable; name without the "@" ("" for the anonymous one, printed "@")."""

    name: str
    index: int
    keys: tuple[DType, ...]
    function: AggFunction
    signed: bool = True  # of the aggregated value


@dataclass(frozen=True, slots=True)
class Expr:
    type: DType
    span: Span


@dataclass(frozen=True, slots=True)
class IntConst(Expr):
    value: int


@dataclass(frozen=True, slots=True)
class StrConst(Expr):
    value: bytes  # without the NUL


@dataclass(frozen=True, slots=True)
class Builtin(Expr):
    """A built-in variable by its D name: pid, timestamp, probefunc, arg0, ..."""

    name: str


@dataclass(frozen=True, slots=True)
class RegisterRead(Expr):
    """regs[index]; index is an expression, usually an IntConst (Register.index).

    user: uregs[index], a register of the thread's user mode; always a constant one."""

    index: Expr
    user: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A D variable.

    name: as D writes it, with self-> or this->.  type: of the variable, or of one element.
    scope: "global", "self" (one for each thread) or "this" (one for each firing).  keys: types of
    an associative array's keys.  length: of a scalar array (int a[5]), else 0.
    """

    name: str
    type: DType
    index: int
    scope: str = "global"
    keys: tuple[DType, ...] = ()
    length: int = 0

    @property
    def is_dynamic(self) -> bool:
        """Whether it lives in the dynamic variable space, under its keys."""
        return self.scope == "self" or bool(self.keys)


@dataclass(frozen=True, slots=True)
class GlobalRead(Expr):
    """A variable without keys, whatever its scope."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class Assign(Expr):
    """variable = value, then the value.  Compound assignment is already expanded.

    The constant 0 of type INT assigned to a string frees it (self->s = 0)."""

    variable: Variable
    value: Expr


@dataclass(frozen=True, slots=True)
class Step(Expr):
    """++ and --: by is +1/-1 (times the pointee's size); post yields the old value."""

    variable: Variable
    by: int
    post: bool


@dataclass(frozen=True, slots=True)
class KeyedRead(Expr):
    """variable[keys]: an associative array, or an element of a scalar array (one key, an INT64;
    outside the array it faults).  0 or "" where nothing was assigned."""

    variable: Variable
    keys: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class KeyedAssign(Expr):
    """variable[keys] = value, then the value.  In value OldValue stands for what the element
    had before (of the innermost KeyedAssign around it): the keys are computed only once."""

    variable: Variable
    keys: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class OldValue(Expr):
    variable: Variable


@dataclass(frozen=True, slots=True)
class KeyedStep(Expr):
    """++ and -- of an element; as Step."""

    variable: Variable
    keys: tuple[Expr, ...]
    by: int
    post: bool


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    op: str  # "-" "~" "!"
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """op: + - * / % & | ^ << >> on integers; == != < <= > >= (integers, pointers, strings).

    Signedness is that of the operands' type.  Division by zero fires dtrace:::ERROR.
    """

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class NonZero(Expr):
    """operand, which faults as a division by it would where it is 0."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class Logical(Expr):
    op: str  # "&&" "||" (short-circuit) "^^"
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Conditional(Expr):
    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Comma(Expr):
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    operand: Expr


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """The value of `type` at an address of the traced kernel; fault-safe (a bad address fires
    dtrace:::ERROR).  An integer or pointer is loaded as such; a StringType copies a string.

    Of a structure or array nothing is loaded: its value in codegen is its address (in lowering a
    Value of 64 bits), and only what records it (trace, print) copies its bytes.

    most: of a string in a char array: its bytes there, where no NUL need be; 0 for others."""

    address: Expr
    most: int = 0


@dataclass(frozen=True, slots=True)
class BitField(Expr):
    """The value of a bit-field, of its declared type; fault-safe as Load is.

    address: of the structure (or the innermost one that contains it).  bit: offset of its first
    bit from there.  bits: its width, 1 to 64."""

    address: Expr
    bit: int
    bits: int


@dataclass(frozen=True, slots=True)
class SymbolAddress(Expr):
    """The address of a symbol of the traced kernel; type: a pointer to the symbol's type.

    It is known once the kernel runs: Machine.symbols has it by (module, name)."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Stack(Expr):
    """stack(n) or ustack(n), whose type is a StackType: recorded and used as a key, never
    computed with."""


@dataclass(frozen=True, slots=True)
class Symbol(Expr):
    """sym(address) and the like, whose type is a SymbolType: recorded and used as a key, never
    computed with."""

    address: Expr


@dataclass(frozen=True, slots=True)
class Subroutine(Expr):
    """A call of a subroutine of D (subroutines.PROTOTYPES), its arguments already converted.

    A string that it returns may be NULL (strchr, strrchr, strstr, strtok), which can be compared
    with NULL and faults anywhere else."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Memory(Expr):
    """The bytes at an address, whose type is a DumpType: recorded only; fault-safe."""

    address: Expr


@dataclass(frozen=True, slots=True)
class Speculation(Expr):
    """speculate(id), commit(id) or discard(id), by its name, as the number that the record
    carries: which speculation it is about, 0 for none.

    speculate: what the clause records from here on belongs to it; commit, discard: it is over
    from here on."""

    name: str
    id: Expr


@dataclass(frozen=True, slots=True)
class Action:
    span: Span


@dataclass(frozen=True, slots=True)
class Evaluate(Action):
    """An expression for its effect; records nothing."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class Trace(Action):
    """names: here and below: of the values that are recorded, as the program writes them."""

    expr: Expr
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Print(Action):
    """print(expr): the value, of any type, shown with the names of its members."""

    expr: Expr
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Printf(Action):
    """args: one per conversion that takes one (and one per "*", before it)."""

    format: Format
    args: tuple[Expr, ...]
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Exit(Action):
    status: Expr


@dataclass(frozen=True, slots=True)
class Aggregate(Action):
    aggregation: Aggregation
    keys: tuple[Expr, ...]
    value: Expr | None  # None for count()
    weight: Expr | None = None  # quantize(x, weight)


@dataclass(frozen=True, slots=True)
class Printa(Action):
    format: Format | None
    aggregations: tuple[Aggregation, ...]


@dataclass(frozen=True, slots=True)
class Clear(Action):
    aggregation: Aggregation


@dataclass(frozen=True, slots=True)
class Trunc(Action):
    aggregation: Aggregation
    count: Expr | None  # None: all


@dataclass(frozen=True, slots=True)
class Normalize(Action):
    aggregation: Aggregation
    divisor: Expr | None  # None: denormalize()


@dataclass(frozen=True, slots=True)
class Perform(Action):
    """An action by its name that is done where the record arrives: speculate, commit, discard,
    tracemem, system, freopen, setopt, ftruncate.  args: what is recorded for it."""

    name: str
    args: tuple[Expr, ...]
    format: Format | None = None
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Chill(Action):
    """chill(ns): the CPU spins."""

    duration: Expr


@dataclass(frozen=True, slots=True)
class Refused(Action):
    """A destructive action that kinst does not do, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Clause:
    """index: position in the program.  No actions at all means the default action.

    crossings: of each pattern that is an instruction of an inlined copy, what it is there."""

    index: int
    patterns: tuple[ProbePattern, ...]
    pattern_spans: tuple[Span, ...]
    predicate: Expr | None
    actions: tuple[Action, ...]
    span: Span
    crossings: tuple[Crossing | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """options: from #pragma D option, in order, (name, value or "")."""

    clauses: tuple[Clause, ...]
    variables: tuple[Variable, ...] = ()
    aggregations: tuple[Aggregation, ...] = ()
    options: tuple[tuple[str, str], ...] = field(default=())


def is_signed(type_: DType) -> bool:
    """Whether values of this type compare, shift and print as signed."""
    return isinstance(type_, IntType) and type_.signed


@dataclass(frozen=True, slots=True)
class Store(Expr):
    """*address = value, then the value (post: then what was there before).

    Only memory that the clause has allocated can be written (Dynamic Tracing Guide, "Pointers and
    Arrays"), and that of variables; any other address faults.  variable: the structure or array
    that the address lies in; then it must lie there, and nowhere else.  In value Before stands
    for what was at the address (of the innermost Store around it).
    bit, bits: as in typed.BitField; bits 0: no bit-field.
    root: of a dynamic variable (self->x, a[key]) its read, whose keys find the element; in address
    Root stands for the address of the element, which is made where there is none.
    A StringType is stored in its size, NULs behind it, cut if need be.
    """

    address: Expr
    value: Expr
    bit: int = 0
    bits: int = 0
    post: bool = False
    variable: Variable | None = None
    root: Expr | None = None


@dataclass(frozen=True, slots=True)
class Before(Expr):
    """What a Store's address holds before it."""


@dataclass(frozen=True, slots=True)
class Root(Expr):
    """In the address of a Store: where the element, or the Snapshot, begins."""


@dataclass(frozen=True, slots=True)
class Snapshot(Expr):
    """A structure that a translator has made: memory of the clause, zeros but for what the stores
    put there.  Its value is its address, as that of any structure.

    first: evaluated before, or None.  stores: their addresses are counted from Root."""

    first: Expr | None
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Shared(Expr):
    """The address of a variable, or of a part of one, as a pointer that may be kept: it is the
    same number in the traced kernel and on the host, which see the variables at two places."""

    operand: Expr


def root_of(address: Expr) -> Expr | None:
    """The read of the structure, array or string variable that an address is made of; None for
    all others."""
    while True:
        if isinstance(address.type, StructType | ArrayType):
            return address
        if isinstance(address, GlobalRead | KeyedRead) and isinstance(address.type, StringType):
            return address
        if isinstance(address, Cast | Shared):
            address = address.operand
        elif isinstance(address, Binary):
            address = address.left
        else:
            return None
