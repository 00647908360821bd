"""The typed tree: the checker's result, which codegen and the consumer read.

Every action ends in Action (TraceAction); a value that is recorded and never computed with begins
with Recorded (RecordedStack). The classes of the syntax tree (syntax/tree.py) end in Node.

Every expression has its type. Conversions are explicit Cast nodes, so that codegen never converts
by itself: both operands of a Binary have the same type (shifts excepted), and the result of a
comparison or logical operator is INT (Dynamic Tracing Guide, ch. 2). Strings are never cast: types
that differ only in StringType.size are one type here. Expressions of integer constants are folded
to one IntConst. No tree is higher than walk.MAX_HEIGHT, so recursion over it is safe.

Tested by tests/dlang/test_walk.py.
"""

from __future__ import annotations

from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import ArrayType, DType, IntType, StringType, StructType
from kinst.core.errors import Span
from kinst.core.probe import Crossing, ProbePattern
from kinst.dlang.vocabulary.subroutines import Prototype


@dataclass(frozen=True, slots=True)
class FormatPart:
    """One conversion of a printf format and the text before it, or the text after the last one."""

    literal: bytes  # the text, with escapes and %% replaced
    # The letter without length modifiers ("d", "x", "s", "Y", ...), with "@" before it if printa()
    # prints the aggregated value ("@d"); "" after the last conversion.
    conversion: str = ""
    flags: str = ""
    # As written. "*" takes an argument of its own, before the value in the argument list.
    width: int | str | None = None
    precision: int | str | None = None
    size: int = 0  # bytes of the integer that is converted; 0 for other values


@dataclass(frozen=True, slots=True)
class PrintfFormat:
    text: str
    parts: tuple[FormatPart, ...]


@dataclass(frozen=True, slots=True)
class AggFunction:
    """An aggregating function."""

    name: str  # count sum min max avg stddev quantize lquantize llquantize
    # lquantize: base, limit, step. llquantize: factor, low, high, nsteps.
    params: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """What an aggregation measures, in the program's own words; "" and () if that is not known."""

    expression: str = ""  # the first argument of the aggregating function
    unit: str = ""  # of its values: "ns", "us", "ms" or "s"
    keys: tuple[str, ...] = ()  # the expressions of the keys


@dataclass(frozen=True, slots=True)
class AggregationVariable:
    """An aggregation of the program."""

    name: str  # without the "@"; "" for the anonymous one, which is printed as "@"
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
    """regs[index] or uregs[index]."""

    index: Expr  # usually an IntConst (Register.index); that of uregs[] always
    user: bool = False  # uregs[]: a register of the thread's user mode


@dataclass(frozen=True, slots=True)
class Variable:
    """A D variable."""

    name: str  # with self-> or this->
    type: DType  # of the variable, or of one element
    index: int
    scope: str = "global"  # "global", "self" (one for each thread) or "this" (one for each firing)
    keys: tuple[DType, ...] = ()  # types of an associative array's keys
    length: int = 0  # of a scalar array (int a[5]), else 0

    @property
    def is_dynamic(self) -> bool:
        """Whether it is stored in the space of dynamic variables, under its keys."""
        return self.scope == "self" or bool(self.keys)


@dataclass(frozen=True, slots=True)
class GlobalRead(Expr):
    """The value of a variable without keys, in any scope."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class Assign(Expr):
    """variable = value, with this value as the result. Compound assignment is already expanded.

    The constant 0 of type INT, assigned to a string, frees it (self->s = 0)."""

    variable: Variable
    value: Expr


@dataclass(frozen=True, slots=True)
class Step(Expr):
    """++ or -- of a variable."""

    variable: Variable
    by: int  # +1 or -1, times the size of what a pointer points to
    post: bool  # the result is the old value


@dataclass(frozen=True, slots=True)
class KeyedRead(Expr):
    """variable[keys]: an element of an associative array (0 or "" if it was never assigned), or of
    a scalar array (one key, an INT64; an index outside the array faults)."""

    variable: Variable
    keys: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class KeyedAssign(Expr):
    """variable[keys] = value, with this value as the result. In value, OldValue is the previous
    value of the element that the innermost KeyedAssign around it assigns to, so that keys are
    computed only once."""

    variable: Variable
    keys: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class OldValue(Expr):
    variable: Variable


@dataclass(frozen=True, slots=True)
class KeyedStep(Expr):
    """++ or -- of an element of an array, with Step's fields."""

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
    """An arithmetic operator or a comparison.

    op: + - * / % & | ^ << >> on integers; == != < <= > >= on integers, pointers and strings.
    Signedness is that of the operands' type. Division by zero fires dtrace:::ERROR.
    """

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class NonZero(Expr):
    """The operand, which faults if it is 0, like a division by it."""

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
    """The value of `type` at an address of the traced kernel; a bad address fires dtrace:::ERROR.

    An integer or pointer is loaded; a StringType copies a string. A structure or array is not
    loaded: its value in codegen is its address, an IrValue of 64 bits, and only actions that record
    it (trace, print) copy its bytes.
    """

    address: Expr
    most: int = 0  # size of a char array that holds a string, perhaps without a NUL; else 0


@dataclass(frozen=True, slots=True)
class BitField(Expr):
    """The value of a bit-field, with its declared type; a bad address fires dtrace:::ERROR."""

    address: Expr  # of the innermost structure that contains it
    bit: int  # offset of its first bit from there
    bits: int  # width, 1 to 64


@dataclass(frozen=True, slots=True)
class SymbolAddress(Expr):
    """The address of a symbol of the traced kernel, as a pointer to the symbol's type.

    CodeMachine.symbols has the number, by (module, name), once the kernel runs.
    """

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class RecordedStack(Expr):
    """stack(n) or ustack(n), of a StackType."""


@dataclass(frozen=True, slots=True)
class RecordedSymbol(Expr):
    """sym(address) and the like, of a SymbolType."""

    address: Expr


@dataclass(frozen=True, slots=True)
class Subroutine(Expr):
    """A call of one of D's subroutines, its arguments already converted.

    A string that it returns may be NULL (strchr, strrchr, strstr, strtok). NULL can be compared
    with NULL and faults anywhere else.
    """

    prototype: Prototype
    args: tuple[Expr, ...]

    @property
    def name(self) -> str:
        return self.prototype.name


@dataclass(frozen=True, slots=True)
class RecordedMemory(Expr):
    """The bytes at an address, of a DumpType; a bad address fires dtrace:::ERROR."""

    address: Expr


@dataclass(frozen=True, slots=True)
class Speculation(Expr):
    """The number that the record of speculate(id), commit(id) or discard(id) has: that of the
    speculation, or 0 for none.

    After speculate, what the clause records belongs to the speculation; commit and discard end it.
    """

    name: str  # speculate, commit or discard
    id: Expr


@dataclass(frozen=True, slots=True)
class Action:
    span: Span


@dataclass(frozen=True, slots=True)
class EvaluateAction(Action):
    """An expression that is evaluated for its effect; records nothing."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class TraceAction(Action):
    """trace(expr)."""

    expr: Expr
    # The recorded expressions as the program writes them; so too in the actions below.
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PrintAction(Action):
    """print(expr): the value, of any type, shown with the names of its members."""

    expr: Expr
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PrintfAction(Action):
    format: PrintfFormat
    # One for each conversion that takes a value, and one before it for each "*".
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
    """An action that the consumer carries out when its record arrives."""

    name: str  # speculate, commit, discard, tracemem, system, freopen, setopt, ftruncate
    args: tuple[Expr, ...]  # the recorded values
    format: PrintfFormat | None = None
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ChillAction(Action):
    """chill(duration): the CPU spins."""

    duration: Expr  # ns


@dataclass(frozen=True, slots=True)
class RefusedAction(Action):
    """A destructive action that kinst does not carry out, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Clause:
    index: int  # position in the program
    patterns: tuple[ProbePattern, ...]
    pattern_spans: tuple[Span, ...]
    predicate: Expr | None
    actions: tuple[Action, ...]  # () for the default action
    span: Span
    # For each pattern that is an instruction of an inlined copy, its role in that copy.
    crossings: tuple[Crossing | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TypedProgram:
    clauses: tuple[Clause, ...]
    variables: tuple[Variable, ...] = ()
    aggregations: tuple[AggregationVariable, ...] = ()
    options: tuple[tuple[str, str], ...] = field(default=())  # (name, value or "") in order


def is_signed(type_: DType) -> bool:
    """Whether values of this type compare, shift and print as signed."""
    return isinstance(type_, IntType) and type_.signed


@dataclass(frozen=True, slots=True)
class Store(Expr):
    """*address = value, with this value as the result.

    Only memory that the clause has allocated (Dynamic Tracing Guide, "Pointers and Arrays") and
    memory of variables may be written; any other address faults. A string is stored in all of its
    type's size, cut or filled up with NULs.
    """

    address: Expr
    value: Expr  # Before in it is what the innermost Store's address holds
    bit: int = 0  # of a bit-field, as in BitField
    bits: int = 0  # 0 if it is no bit-field
    post: bool = False  # the result is the old value
    variable: Variable | None = None  # the structure or array that the address has to be in
    # The read of a dynamic variable (self->x, a[key]), whose keys find the element. BaseAddress in
    # `address` is the element's address; a missing element is made.
    root: Expr | None = None


@dataclass(frozen=True, slots=True)
class Before(Expr):
    """The value at a Store's address before the store."""


@dataclass(frozen=True, slots=True)
class BaseAddress(Expr):
    """In a Store's address: the address of the element, or of the TranslatedStruct."""


@dataclass(frozen=True, slots=True)
class TranslatedStruct(Expr):
    """A structure that a translator makes in the clause's memory: zeros, except for the stores.
    Its value is its address, like any structure's."""

    first: Expr | None  # evaluated before the stores
    stores: tuple[Store, ...]  # their addresses begin with BaseAddress


@dataclass(frozen=True, slots=True)
class Shared(Expr):
    """The address of a variable or of a part of it, as a pointer that may be stored: one number for
    the traced kernel and the host, which map variables at different addresses."""

    operand: Expr


def root_of(address: Expr) -> Expr | None:
    """Return the read of the structure, array or string variable that an address is computed from;
    None if there is none."""
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
