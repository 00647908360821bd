"""The typed tree: the checker's result, which codegen and the consumer read.

The name of every action ends in Action (TraceAction). The name of a value that a program can record
but not compute with begins with Recorded (RecordedStack). The classes of the syntax tree
(syntax/tree.py) end in Node.

Every expression has its type. Conversions are explicit Cast nodes, so codegen never converts by
itself: both operands of a Binary have the same type (except for shifts), and the result of a
comparison or logical operator is INT (Dynamic Tracing Guide, ch. 2). Strings are never cast: here,
string types of different sizes count as equal. Constant integer expressions are folded to one
IntConst. No tree is higher than walk.MAX_HEIGHT, so code may recurse on it.

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
    """A conversion of a printf format with the text before it, or the text after the last
    conversion.
    """

    literal: bytes  # the text, with escapes and %% replaced
    # The letter without length modifiers ("d", "x", "s", "Y", ...), with "@" before it if printa()
    # prints the aggregated value ("@d"); "" after the last conversion.
    conversion: str = ""
    flags: str = ""
    # As the program writes them. "*" takes an argument, which comes before the converted value.
    width: int | str | None = None
    precision: int | str | None = None
    size: int = 0  # bytes of a converted integer or pointer; 0 for other values


@dataclass(frozen=True, slots=True)
class PrintfFormat:
    text: str
    parts: tuple[FormatPart, ...]


@dataclass(frozen=True, slots=True)
class AggFunction:
    """An aggregating function with its constant parameters."""

    name: str  # count sum min max avg stddev quantize lquantize llquantize
    # lquantize: base, limit, step. llquantize: factor, low, high, nsteps.
    params: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """What an aggregation measures, in the words of the program. A field is "" or () if it is not
    known.
    """

    expression: str = ""  # the first argument of the aggregating function
    unit: str = ""  # unit of the aggregated values: "ns", "us", "ms" or "s"
    keys: tuple[str, ...] = ()  # the expressions of the keys


@dataclass(frozen=True, slots=True)
class AggregationVariable:
    """An aggregation of the program."""

    name: str  # without the "@"; "" for the anonymous aggregation, which is printed as "@"
    index: int
    keys: tuple[DType, ...]
    function: AggFunction
    signed: bool = True  # whether the aggregated value is signed
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
    """The value of a built-in variable of D, such as pid, timestamp, probefunc or arg0."""

    name: str


@dataclass(frozen=True, slots=True)
class RegisterRead(Expr):
    """The value of regs[index] or uregs[index]."""

    index: Expr  # usually an IntConst (Register.index); for uregs[], always an IntConst
    user: bool = False  # whether it is uregs[index], a register of the thread's user mode


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a D program."""

    name: str  # with self-> or this->
    type: DType  # type of the variable or, for an array, of one element
    index: int
    scope: str = "global"  # "global", "self" (one for each thread) or "this" (one for each firing)
    keys: tuple[DType, ...] = ()  # types of an associative array's keys
    length: int = 0  # number of elements of a scalar array (int a[5]), else 0

    @property
    def is_dynamic(self) -> bool:
        """Whether the variable is stored in the space of dynamic variables, where it is found by
        its keys or its thread.
        """
        return self.scope == "self" or bool(self.keys)


@dataclass(frozen=True, slots=True)
class GlobalRead(Expr):
    """The value of a variable that is read without keys, in any scope."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class Assign(Expr):
    """The assignment variable = value; its result is the value. Compound assignments are already
    expanded.

    If the value is the constant 0 of type INT and the variable is a string, the assignment frees
    the string (self->s = 0).
    """

    variable: Variable
    value: Expr


@dataclass(frozen=True, slots=True)
class Step(Expr):
    """The operator ++ or -- on a variable without keys."""

    variable: Variable
    by: int  # the number to add: +1 or -1, for a pointer times the size of its target
    post: bool  # whether the result is the old value


@dataclass(frozen=True, slots=True)
class KeyedRead(Expr):
    """The value of variable[keys], an element of an array.

    An element of an associative array is 0 or "" if it was never assigned. A scalar array has one
    key, an INT64; an index outside the array faults.
    """

    variable: Variable
    keys: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class KeyedAssign(Expr):
    """The assignment variable[keys] = value; its result is the value.

    In a compound assignment, `value` has an OldValue: the element's value before the assignment, so
    that the keys are computed only once. If KeyedAssigns are nested, the OldValue belongs to the
    innermost KeyedAssign around it.
    """

    variable: Variable
    keys: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class OldValue(Expr):
    variable: Variable


@dataclass(frozen=True, slots=True)
class KeyedStep(Expr):
    """The operator ++ or -- on an element of an array."""

    variable: Variable
    keys: tuple[Expr, ...]
    by: int  # the number to add: +1 or -1, for a pointer times the size of its target
    post: bool  # whether the result is the old value


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    op: str  # "-" "~" "!"
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """An arithmetic operator or a comparison with two operands.

    Attributes:
        op: + - * / % & | ^ << >> on integers; == != < <= > >= on integers, pointers and strings.
            The operation is signed if the operands' type is signed. A division by zero fires
            dtrace:::ERROR.
    """

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class NonZero(Expr):
    """The value of the operand. If it is 0, dtrace:::ERROR fires as for a division by zero."""

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

    For an integer or a pointer, codegen loads the value. For a StringType, codegen copies the
    string. For a structure or an array, codegen uses the address as the value (an IrValue of 64
    bits); only trace() and print() copy the bytes.
    """

    address: Expr
    most: int = 0  # size of the char array if the string is in one, maybe without a NUL; else 0


@dataclass(frozen=True, slots=True)
class BitField(Expr):
    """The value of a bit-field, with its declared type; a bad address fires dtrace:::ERROR."""

    address: Expr  # address of the byte that has the bit-field's first bit
    bit: int  # offset of the first bit in that byte
    bits: int  # width of the bit-field, 1 to 64


@dataclass(frozen=True, slots=True)
class SymbolAddress(Expr):
    """The address of a symbol of the traced kernel, as a pointer to the symbol's type.

    The tree has only the symbol's names. Codegen finds the address in CodeMachine.symbols, which is
    filled once the kernel runs.
    """

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class RecordedStack(Expr):
    """The value of stack(n) or ustack(n), which has a StackType."""


@dataclass(frozen=True, slots=True)
class RecordedSymbol(Expr):
    """The value of sym(address) and the like, which has a SymbolType."""

    address: Expr


@dataclass(frozen=True, slots=True)
class Subroutine(Expr):
    """A call of a subroutine, with arguments that are already converted to the parameters' types.

    A string result may be NULL (strchr, strrchr, strstr, strtok). NULL can be compared with NULL;
    any other use of it faults.
    """

    prototype: Prototype
    args: tuple[Expr, ...]

    @property
    def name(self) -> str:
        return self.prototype.name


@dataclass(frozen=True, slots=True)
class RecordedMemory(Expr):
    """The bytes at an address, as a value of a DumpType; a bad address fires dtrace:::ERROR."""

    address: Expr


@dataclass(frozen=True, slots=True)
class Speculation(Expr):
    """The number in the record of speculate(id), commit(id) or discard(id): the number of the
    speculation, or 0 if the speculation does not exist.

    After speculate(), the records of the clause belong to the speculation; commit() and discard()
    end the speculation.
    """

    name: str  # speculate, commit or discard
    id: Expr


@dataclass(frozen=True, slots=True)
class Action:
    span: Span


@dataclass(frozen=True, slots=True)
class EvaluateAction(Action):
    """An expression statement, which is evaluated for its effect and records nothing."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class TraceAction(Action):
    """The action trace(expr)."""

    expr: Expr
    # The recorded expressions as the program writes them. `names` means this in all actions.
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PrintAction(Action):
    """The action print(expr), which shows a value of any type with the names of its members."""

    expr: Expr
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PrintfAction(Action):
    format: PrintfFormat
    # One expression for each conversion that takes a value. The expressions for a conversion's "*"
    # come before its value.
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
    weight: Expr | None = None  # weight of a distribution's value, as in quantize(x, weight)


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
    count: Expr | None  # number of entries to keep; None if trunc() removes all


@dataclass(frozen=True, slots=True)
class NormalizeAction(Action):
    aggregation: AggregationVariable
    divisor: Expr | None  # None for denormalize()


@dataclass(frozen=True, slots=True)
class PerformAction(Action):
    """An action that the consumer performs when its record arrives, such as system()."""

    name: str  # speculate, commit, discard, tracemem, system, freopen, setopt, ftruncate
    args: tuple[Expr, ...]  # the recorded values
    format: PrintfFormat | None = None
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ChillAction(Action):
    """The action chill(duration), which makes the CPU spin."""

    duration: Expr  # ns


@dataclass(frozen=True, slots=True)
class PerturbAction(Action):
    """Base class of the actions that change the traced function's registers, or where control goes.
    They take effect when all clauses of the probe have run.
    """


@dataclass(frozen=True, slots=True)
class SetRegisterAction(PerturbAction):
    """The action regs[index] = value."""

    index: int  # Register.index
    value: Expr  # converted to 64 bits


@dataclass(frozen=True, slots=True)
class DivertAction(PerturbAction):
    """Base class of the actions that choose where control goes."""


@dataclass(frozen=True, slots=True)
class ReturnAction(DivertAction):
    """The action return(value): the function, at whose first instruction the probe is, does not
    run, and its caller gets the value.
    """

    value: Expr


@dataclass(frozen=True, slots=True)
class SkipAction(DivertAction):
    """The action skip(): the probe's instruction does not run."""


@dataclass(frozen=True, slots=True)
class GotoAction(DivertAction):
    """The action goto(offset): control continues at another instruction of the function."""

    offset: int  # of that instruction, from the function's start


@dataclass(frozen=True, slots=True)
class PanicAction(Action):
    """The action panic(), which ends the traced kernel."""

    text: StrConst  # the message of the kernel's last words


@dataclass(frozen=True, slots=True)
class RaiseAction(Action):
    """The action raise(signal), which sends a signal to the current thread, or stop()."""

    signal: Expr | None  # the signal's number, with 64 bits; None for stop()


@dataclass(frozen=True, slots=True)
class RefusedAction(Action):
    """A destructive action that kinst refuses to perform, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Clause:
    index: int  # index of the clause in the program
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
    """Return whether values of this type are compared, shifted and printed as signed numbers."""
    return isinstance(type_, IntType) and type_.signed


@dataclass(frozen=True, slots=True)
class Store(Expr):
    """The assignment *address = value; its result is the value.

    The address must be in memory that the clause has allocated (Dynamic Tracing Guide, "Pointers
    and Arrays") or in a D variable; any other address faults. A string fills the whole size of its
    type: it is cut, or filled up with NULs.
    """

    address: Expr
    value: Expr  # a Before in it stands for the old value at the innermost Store's address
    bit: int = 0  # first bit of a bit-field (BitField.bit)
    bits: int = 0  # width of a bit-field; 0 for any other value
    post: bool = False  # whether the result is the old value
    variable: Variable | None = None  # the structure or array that the address must be in
    # The read of a dynamic variable (self->x, a[key]), whose keys find the element. A BaseAddress
    # in `address` stands for the element's address. A missing element is made.
    root: Expr | None = None


@dataclass(frozen=True, slots=True)
class Before(Expr):
    """The value that is at a Store's address before the store."""


@dataclass(frozen=True, slots=True)
class BaseAddress(Expr):
    """Placeholder in a Store's address: the address of the structure that the Store changes. The
    structure is the dynamic variable's element that Store.root reads, or a TranslatedStruct.
    """


@dataclass(frozen=True, slots=True)
class TranslatedStruct(Expr):
    """A structure that a translator makes in the clause's memory: all bytes are set to 0, then
    `stores` set its members. Its value in codegen is its address, as for any structure.
    """

    first: Expr | None  # an expression to evaluate before the stores
    stores: tuple[Store, ...]  # their addresses begin with BaseAddress


@dataclass(frozen=True, slots=True)
class Shared(Expr):
    """The address of a D variable or of a part of it, as a pointer that the program may store.

    D variables are in memory that both the traced kernel and kinst's process map, at different
    addresses. A Shared always has the kernel's address.
    """

    operand: Expr


def root_of(address: Expr) -> Expr | None:
    """Return the part of an address expression that reads a whole structure, array or string
    variable, such as self->s in &self->s.member; None if there is no such part.
    """
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
