"""The typed tree: the checker's result, which codegen and the consumer read.

Names: every action ends in Action (TraceAction); a value that is recorded and never computed with
begins with Recorded (RecordedStack). Every class of the syntax tree (syntax/tree.py) ends in Node.

Every expression carries its type; conversions are explicit Cast nodes, so that codegen never
converts by itself: both operands of a Binary have the same type (shifts excepted), and the
result of comparisons and logical operators is INT (Dynamic Tracing Guide, ch. 2).  Strings are
never cast: types that differ only in StringType.size are the same here.  Expressions whose
operands are all integer constants are folded to one IntConst.  No tree is higher than
walk.MAX_HEIGHT, so that recursion over it is safe.

Tested by tests/dlang/test_walk.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kinst.core.dtypes import ArrayType, DType, IntType, StringType, StructType
from kinst.core.errors import Span
from kinst.core.probe import Crossing, ProbePattern


@dataclass(frozen=True, slots=True)
class FormatPart:
    """One piece of a printf format.

    literal: the text before the conversion, with escapes and %% replaced. conversion: "" behind the
    last conversion, else its letter without length modifiers ("d", "x", "s", "Y", ...), preceded by
    "@" where printa() prints the aggregated value ("@d"). flags, width, precision: as written; "*"
    takes an argument of its own, which comes before the value in the argument list. size: bytes of
    the integer that is converted; 0 for other values.
    """

    literal: bytes
    conversion: str = ""
    flags: str = ""
    width: int | str | None = None
    precision: int | str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class PrintfFormat:
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
class Measure:
    """What an aggregation measures, in the program's own words; "" and () where that is not known.

    Attributes:
        expression: the first argument of the aggregating function.
        unit: of its values: "ns", "us", "ms" or "s".
        keys: the expressions of the keys.
    """

    expression: str = ""
    unit: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AggregationVariable:
    """An aggregation variable; name without the "@" ("" for the anonymous one, printed "@")."""

    name: str
    index: int
    keys: tuple[DType, ...]
    function: AggFunction
    signed: bool = True  # of the aggregated value
    measure: Measure = field(default=Measure(), compare=False)


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
    """regs[index]. index is an expression, usually an IntConst (Register.index).

    user: uregs[index], a register of the thread's user mode; its index is always constant.
    """

    index: Expr
    user: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A D variable.

    name: as D writes it, with self-> or this->. type: of the variable, or of one element. scope:
    "global", "self" (one for each thread) or "this" (one for each firing). keys: the types of an
    associative array's keys. length: of a scalar array (int a[5]), else 0.
    """

    name: str
    type: DType
    index: int
    scope: str = "global"
    keys: tuple[DType, ...] = ()
    length: int = 0

    @property
    def is_dynamic(self) -> bool:
        """Whether it lives in the space of dynamic variables, under its keys."""
        return self.scope == "self" or bool(self.keys)


@dataclass(frozen=True, slots=True)
class GlobalRead(Expr):
    """A variable without keys, in any scope."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class Assign(Expr):
    """variable = value, then the value.  Compound assignment is already expanded.

    The constant 0 of type INT assigned to a string frees it (self->s = 0)."""

    variable: Variable
    value: Expr


@dataclass(frozen=True, slots=True)
class Step(Expr):
    """++ and --. by: +1 or -1, times the pointee's size; post: the value is the old one."""

    variable: Variable
    by: int
    post: bool


@dataclass(frozen=True, slots=True)
class KeyedRead(Expr):
    """variable[keys]: an element of an associative array (0 or "" if it was never assigned), or of
    a scalar array (one key, an INT64; outside the array it faults)."""

    variable: Variable
    keys: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class KeyedAssign(Expr):
    """variable[keys] = value, then the value. In value, OldValue stands for what the element of the
    innermost KeyedAssign around it held before, so that keys are computed only once."""

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
    """operand; where it is 0 it faults as a division by it would."""

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
    """The value of `type` at an address of the traced kernel. It is fault-safe: a bad address fires
    dtrace:::ERROR. An integer or pointer is loaded as such; a StringType copies a string.

    A structure or array is not loaded: codegen's value for it is its address, a Value of 64 bits,
    and only actions that record it (trace, print) copy its bytes.

    most: the bytes of a char array that holds a string, perhaps without a NUL; 0 for everything
    else.
    """

    address: Expr
    most: int = 0


@dataclass(frozen=True, slots=True)
class BitField(Expr):
    """The value of a bit-field, with its declared type; fault-safe as Load is.

    address: of the structure, or of the innermost one that contains it. bit: offset of its first
    bit from there. bits: its width, 1 to 64.
    """

    address: Expr
    bit: int
    bits: int


@dataclass(frozen=True, slots=True)
class SymbolAddress(Expr):
    """The address of a symbol of the traced kernel, a pointer to the symbol's type.

    It is known when the kernel runs: CodeMachine.symbols has it by (module, name).
    """

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class RecordedStack(Expr):
    """stack(n) or ustack(n), of a StackType: recorded or used as a key, never computed with."""


@dataclass(frozen=True, slots=True)
class RecordedSymbol(Expr):
    """sym(address) and the like, of a SymbolType: recorded or used as a key, never computed
    with."""

    address: Expr


@dataclass(frozen=True, slots=True)
class Subroutine(Expr):
    """A call of one of D's subroutines (vocabulary/subroutines.py), its arguments already
    converted.

    The string it returns may be NULL (strchr, strrchr, strstr, strtok). NULL can be compared with
    NULL and faults anywhere else.
    """

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class RecordedMemory(Expr):
    """The bytes at an address, of a DumpType: recorded only; fault-safe."""

    address: Expr


@dataclass(frozen=True, slots=True)
class Speculation(Expr):
    """speculate(id), commit(id) or discard(id), as the number that its record carries: that of the
    speculation, or 0 for none.

    After speculate, what the clause records belongs to the speculation; commit and discard end it.
    """

    name: str
    id: Expr


@dataclass(frozen=True, slots=True)
class Action:
    span: Span


@dataclass(frozen=True, slots=True)
class EvaluateAction(Action):
    """An expression for its effect; it records nothing."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class TraceAction(Action):
    """names: here and below: of the values that are recorded, as the program writes them."""

    expr: Expr
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PrintAction(Action):
    """print(expr): the value, of any type, shown with the names of its members."""

    expr: Expr
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PrintfAction(Action):
    """args: one for each conversion that takes one, and before it one for each "*"."""

    format: PrintfFormat
    args: tuple[Expr, ...]
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ExitAction(Action):
    status: Expr


@dataclass(frozen=True, slots=True)
class AggregateAction(Action):
    aggregation: AggregationVariable
    keys: tuple[Expr, ...]
    value: Expr | None  # None for count()
    weight: Expr | None = None  # quantize(x, weight)


@dataclass(frozen=True, slots=True)
class PrintaAction(Action):
    format: PrintfFormat | None
    aggregations: tuple[AggregationVariable, ...]


@dataclass(frozen=True, slots=True)
class ClearAction(Action):
    aggregation: AggregationVariable


@dataclass(frozen=True, slots=True)
class TruncAction(Action):
    aggregation: AggregationVariable
    count: Expr | None  # None: all


@dataclass(frozen=True, slots=True)
class NormalizeAction(Action):
    aggregation: AggregationVariable
    divisor: Expr | None  # None: denormalize()


@dataclass(frozen=True, slots=True)
class PerformAction(Action):
    """An action, by its name, that is carried out where its record arrives: speculate, commit,
    discard, tracemem, system, freopen, setopt, ftruncate. args: what is recorded for it."""

    name: str
    args: tuple[Expr, ...]
    format: PrintfFormat | None = None
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ChillAction(Action):
    """chill(ns): the CPU spins."""

    duration: Expr


@dataclass(frozen=True, slots=True)
class RefusedAction(Action):
    """A destructive action that kinst does not carry out, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Clause:
    """index: position in the program. actions: () means the default action. crossings: for each
    pattern that is an instruction of an inlined copy, its role in that copy."""

    index: int
    patterns: tuple[ProbePattern, ...]
    pattern_spans: tuple[Span, ...]
    predicate: Expr | None
    actions: tuple[Action, ...]
    span: Span
    crossings: tuple[Crossing | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TypedProgram:
    """options: (name, value or "") of each #pragma D option, in order."""

    clauses: tuple[Clause, ...]
    variables: tuple[Variable, ...] = ()
    aggregations: tuple[AggregationVariable, ...] = ()
    options: tuple[tuple[str, str], ...] = field(default=())


def is_signed(type_: DType) -> bool:
    """Whether values of this type compare, shift and print as signed."""
    return isinstance(type_, IntType) and type_.signed


@dataclass(frozen=True, slots=True)
class Store(Expr):
    """*address = value, then the value (with post, the old one).

    Only memory that the clause has allocated may be written (Dynamic Tracing Guide, "Pointers and
    Arrays"), and that of variables; any other address faults. variable: the structure or array that
    the address has to be in. bit, bits: as in BitField; bits 0 if it is none. In value, Before
    stands for what the innermost Store's address holds. root: for a dynamic variable (self->x,
    a[key]) its read, whose keys find the element; in address, BaseAddress stands for the
    element's address, and a missing element is made. A string is stored in all of its type's size,
    cut or filled up with NULs.
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
class BaseAddress(Expr):
    """In a Store's address: the start of the element, or of the TranslatedStruct."""


@dataclass(frozen=True, slots=True)
class TranslatedStruct(Expr):
    """A structure that a translator makes, in the clause's memory: zeros except for the stores.
    Like any structure's, its value is its address.

    first: evaluated before the stores, or None. stores: each address is relative to BaseAddress.
    """

    first: Expr | None
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Shared(Expr):
    """The address of a variable, or of a part of it, as a pointer that may be kept: the same number
    in the traced kernel and on the host, which see variables at two places."""

    operand: Expr


def root_of(address: Expr) -> Expr | None:
    """The read of the structure, array or string variable that an address is made from, else
    None."""
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
