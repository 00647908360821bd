"""Types of the D language, as the checker assigns them and codegen lowers them.

D is LP64 on every ISA: int is 4 bytes, long and pointers are 8 (Dynamic Tracing Guide, "Types,
Operators, and Expressions").

Qualifiers (const, volatile, restrict) and the names of typedefs mean nothing to the compiler and
are kept for messages and print() only: in IntType.name, and elsewhere in `alias`, which comparisons
ignore.

Tested by tests/dlang/types and tests/image/test_types.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Protocol

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """Base of all D types."""

    def __str__(self) -> str:
        return "<type>"


@dataclass(frozen=True, slots=True)
class VoidType(DType):
    def __str__(self) -> str:
        return "void"


@dataclass(frozen=True, slots=True)
class IntType(DType):
    """An integer.

    Attributes:
        size: bytes (1, 2, 4, 8).
        name: as D spells it.
        plain_char: C's char, which is unsigned in kernels of some ISAs, and since Linux 6.2 in all
            (-funsigned-char).
    """

    size: int
    signed: bool
    name: str
    plain_char: bool = field(default=False, compare=False, kw_only=True)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class EnumType(IntType):
    """An enumeration: an integer whose values have names.

    Attributes:
        name: "enum tag", or a typedef's.
        values: (name, value), in the order of the declaration.
    """

    values: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def name_of(self, value: int) -> str | None:
        """Return the first name of a value."""
        return next((name for name, known in self.values if known == value), None)


@dataclass(frozen=True, slots=True)
class FloatType(DType):
    """float, double or long double, of members and casts only: D does not compute with them."""

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
    """A D string, stored as NUL-terminated bytes in at most `size` bytes (NUL included).

    size 0 means "bounded by the strsize option"; execname and literals have smaller bounds."""

    size: int = 0

    def __str__(self) -> str:
        return "string"


@dataclass(frozen=True, slots=True)
class ArrayType(DType):
    """`count` elements of a type; 0 for a flexible array, whose length is not known."""

    of: DType
    count: int
    alias: str = field(default="", compare=False)

    def __str__(self) -> str:
        return spelled(self)


@dataclass(frozen=True, slots=True)
class FunctionType(DType):
    """A function: its result and its parameters. variadic: more may follow."""

    result: DType
    parameters: tuple[DType, ...]
    variadic: bool = False
    alias: str = field(default="", compare=False)

    def __str__(self) -> str:
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a structure.

    Attributes:
        name: "" for an anonymous structure or union, or padding bits.
        bit: offset of its first bit from the structure's start.
        bits: width of a bit-field, 0 for any other member.
    """

    name: str
    type: DType
    bit: int
    bits: int = 0

    @property
    def offset(self) -> int:
        """Bytes from the structure's start to the byte with the first bit."""
        return self.bit // 8


class MemberSource(Protocol):
    """Reads the members of structures."""

    def members(self, struct: StructType) -> Sequence[Member]:
        """Return the members in their order; () for a forward declaration. Raises KinstError for
        damaged debug information."""
        ...


@dataclass(frozen=True, slots=True)
class StructType(DType):
    """A structure or union.

    Its members are read only when needed, so that types which contain pointers to themselves are as
    cheap as any, and can be compared and hashed.

    Attributes:
        kind: "struct" or "union".
        name: the tag, "" for none.
        size: bytes, 0 if it is only declared.
        key: distinguishes it from all others of its source ("vmlinux 123", "D 4").
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
        """Return the member of this name, also one of an anonymous member; its bit counts from the
        start of this structure."""
        for member in self.members:
            if member.name == name and name:
                return member
            if not member.name and isinstance(member.type, StructType):
                inner = member.type.member(name)
                if inner is not None:
                    return Member(name, inner.type, member.bit + inner.bit, inner.bits)
        return None


def spelled(type_: DType, name: str = "") -> str:
    """Return the C declaration of `name` with this type, or the type's own name: char *(*)[4]."""
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
    """Whether arrays of this type are strings."""
    if not isinstance(type_, IntType) or type_.size != 1:
        return False
    return type_.signed or type_.plain_char


def named(type_: DType, name: str) -> DType:
    """Return the type with a typedef's name."""
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
    """A recorded stack: `frames` u64 return addresses, the probed program counter first, zeros at
    the end.

    user: whether it is the current process's; then USER_WORDS words about that come first."""

    frames: int
    user: bool = False

    @property
    def size(self) -> int:
        return 8 * (self.frames + (USER_WORDS if self.user else 0))

    def __str__(self) -> str:
        return "stack"


@dataclass(frozen=True, slots=True)
class SymbolType(DType):
    """A recorded address that is shown as a name.

    kind: sym, func, mod; or, for an address of the current process with USER_WORDS words about that
    before it, uaddr, usym, ufunc, umod."""

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
    """`size` bytes of memory that tracemem() records."""

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
