"""Types of the D language: the checker assigns them to expressions, and codegen lowers them to LLVM
types.

D is LP64 on every ISA: int has 4 bytes, long and pointers have 8 (Dynamic Tracing Guide, "Types,
Operators, and Expressions").

Qualifiers (const, volatile, restrict) and names of typedefs have no meaning for the compiler. They
are kept only for messages and print(): in IntType.name, and for other types in `alias`, which
comparisons ignore.

Tested by tests/dlang/types and tests/image/test_types.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Protocol

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """Base class of all D types."""

    def __str__(self) -> str:
        return "<type>"


@dataclass(frozen=True, slots=True)
class VoidType(DType):
    def __str__(self) -> str:
        return "void"


@dataclass(frozen=True, slots=True)
class IntType(DType):
    """An integer type.

    Attributes:
        size: bytes (1, 2, 4, 8).
        name: as D spells it.
        plain_char: whether the type is C's plain char. It is unsigned in kernels of some ISAs, and
            since Linux 6.2 in all kernels (-funsigned-char).
    """

    size: int
    signed: bool
    name: str
    plain_char: bool = field(default=False, compare=False, kw_only=True)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class EnumType(IntType):
    """An enumeration type: an integer whose values have names.

    Attributes:
        name: "enum tag", or the name of a typedef.
        values: (name, value) of each constant, in the order of the declaration.
    """

    values: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def name_of(self, value: int) -> str | None:
        """Return the name of a value, the first if there are several; None if the value has no
        name."""
        return next((name for name, known in self.values if known == value), None)


@dataclass(frozen=True, slots=True)
class FloatType(DType):
    """The types float, double and long double, which only members and casts can have: D has no
    floating-point arithmetic."""

    size: int
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class PointerType(DType):
    to: DType
    size: int = 8
    alias: str = field(default="", compare=False)

    def __str__(self) -> str:
        return spelled(self)


@dataclass(frozen=True, slots=True)
class StringType(DType):
    """The type of a D string: NUL-terminated text in at most `size` bytes, with the NUL.

    size 0 means that the strsize option is the bound; execname and string literals have smaller
    bounds."""

    size: int = 0

    def __str__(self) -> str:
        return "string"


@dataclass(frozen=True, slots=True)
class ArrayType(DType):
    """The type of an array of `count` elements. A count of 0 means a flexible array member, whose
    length is not known."""

    of: DType
    count: int
    alias: str = field(default="", compare=False)

    def __str__(self) -> str:
        return spelled(self)


@dataclass(frozen=True, slots=True)
class FunctionType(DType):
    """The type of a function.

    Attributes:
        variadic: whether more arguments may follow the parameters.
        names: the names of the parameters, "" for one without a name; () if they are not known.
    """

    result: DType
    parameters: tuple[DType, ...]
    variadic: bool = False
    alias: str = field(default="", compare=False)
    names: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a structure or union.

    Attributes:
        name: "" for an anonymous structure or union, or for padding bits.
        bit: offset in bits from the start of the structure.
        bits: width of a bit-field in bits, 0 for any other member.
    """

    name: str
    type: DType
    bit: int
    bits: int = 0

    @property
    def offset(self) -> int:
        """Offset in bytes from the start of the structure to the byte that has the member's first
        bit."""
        return self.bit // 8


class MemberSource(Protocol):
    """Source of the members of structures, which are read when they are first needed."""

    def members(self, struct: StructType) -> Sequence[Member]:
        """Return the members of a structure or union, in order; () for a forward declaration.
        Raises KinstError if the debug information is damaged."""
        ...


@dataclass(frozen=True, slots=True)
class StructType(DType):
    """The type of a structure or union.

    Its members are read only when needed. So a structure that contains pointers to itself can be
    made, compared and hashed without following the pointers.

    Attributes:
        kind: "struct" or "union".
        name: the tag, "" if there is none.
        size: bytes, 0 for a forward declaration.
        key: text that no other structure of the same source has ("vmlinux 123", "D 4").
    """

    kind: str
    name: str
    size: int
    key: str
    source: MemberSource = field(compare=False, repr=False)
    alias: str = field(default="", compare=False)

    def __str__(self) -> str:
        return spelled(self)

    @property
    def members(self) -> Sequence[Member]:
        return self.source.members(self)

    def member(self, name: str) -> Member | None:
        """Return the member of this name, also from anonymous structures and unions inside this
        structure; None if there is none. The offset counts from the start of this structure."""
        for member in self.members:
            if member.name == name and name:
                return member
            if not member.name and isinstance(member.type, StructType):
                inner = member.type.member(name)
                if inner is not None:
                    return Member(name, inner.type, member.bit + inner.bit, inner.bits)
        return None


def spelled(type_: DType, name: str = "") -> str:
    """Return the C declaration of `name` with this type, such as "char *(*name)[4]"; without a
    name, the C spelling of the type."""
    if isinstance(type_, PointerType | ArrayType | FunctionType) and not type_.alias:
        if isinstance(type_, PointerType):
            inner = type_.to
            plain = isinstance(inner, ArrayType | FunctionType) and not inner.alias
            return spelled(inner, f"(*{name})" if plain else f"*{name}")
        if isinstance(type_, ArrayType):
            return spelled(type_.of, f"{name}[{type_.count or ''}]")
        taken = [str(p) for p in type_.parameters] + (["..."] if type_.variadic else [])
        return spelled(type_.result, f"{name}({', '.join(taken) or 'void'})")
    if isinstance(type_, PointerType | ArrayType | FunctionType):
        base = type_.alias
    elif isinstance(type_, StructType):
        base = type_.alias or (f"{type_.kind} {type_.name}" if type_.name else type_.kind)
    else:
        base = str(type_)
    return f"{base} {name}" if name else base


def is_char(type_: DType) -> bool:
    """Whether D treats arrays with elements of this type as strings."""
    if not isinstance(type_, IntType) or type_.size != 1:
        return False
    return type_.signed or type_.plain_char


def named(type_: DType, name: str) -> DType:
    """Return the type with the name of a typedef, which messages and print() show."""
    if isinstance(type_, IntType):
        return replace(type_, name=name)
    if isinstance(type_, PointerType | ArrayType | FunctionType | StructType):
        return replace(type_, alias=name)
    return type_


# Words about the current process in a record: its id, where its program's code was loaded, and the
# file name of its program, cut to 32 bytes; all 0 if not known.
USER_WORDS = 6


@dataclass(frozen=True, slots=True)
class StackType(DType):
    """The type of a stack recorded by stack() or ustack(): `frames` u64 addresses, the probe's
    program counter first, then return addresses, then zeros.

    Attributes:
        user: whether it is the user stack of the current process. If so, USER_WORDS words about the
            process come before the addresses.
    """

    frames: int
    user: bool = False

    @property
    def size(self) -> int:
        return 8 * (self.frames + (USER_WORDS if self.user else 0))

    def __str__(self) -> str:
        return "stack"


@dataclass(frozen=True, slots=True)
class SymbolType(DType):
    """The type of a recorded address that is shown as a name.

    Attributes:
        kind: the D function that recorded the address: sym, func or mod for the kernel; uaddr,
            usym, ufunc or umod for the current process, with USER_WORDS words about that process
            before the address.
    """

    kind: str

    @property
    def user(self) -> bool:
        return self.kind[0] == "u"

    @property
    def size(self) -> int:
        return 8 * (1 + (USER_WORDS if self.user else 0))

    def __str__(self) -> str:
        return "_usymaddr" if self.user else "_symaddr"


@dataclass(frozen=True, slots=True)
class DumpType(DType):
    """The type of `size` bytes of memory that tracemem() records."""

    size: int

    def __str__(self) -> str:
        return "<bytes>"


CHAR = IntType(1, True, "char")
INT8 = IntType(1, True, "int8_t")
UINT8 = IntType(1, False, "uint8_t")
SHORT = IntType(2, True, "short")
USHORT = IntType(2, False, "unsigned short")
INT = IntType(4, True, "int")
UINT = IntType(4, False, "unsigned int")
LONG = IntType(8, True, "long")
ULONG = IntType(8, False, "unsigned long")
INT64 = IntType(8, True, "int64_t")
UINT64 = IntType(8, False, "uint64_t")
STRING = StringType()
VOID = VoidType()
