"""Types of the D language, as the checker assigns them and codegen lowers them.

D is LP64 on every ISA of kinst: int is 4 bytes, long and pointers are 8 (Dynamic Tracing
Guide, "Types, Operators, and Expressions").
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """An integer: size in bytes (1, 2, 4, 8); name as D spells it."""

    size: int
    signed: bool
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class PointerType(DType):
    to: DType
    size: int = 8

    def __str__(self) -> str:
        return f"{self.to} *"


@dataclass(frozen=True, slots=True)
class StringType(DType):
    """A D string, stored as NUL-terminated bytes in at most `size` bytes (NUL included).

    size 0 means "bounded by the strsize option"; execname and literals have smaller bounds.
    """

    size: int = 0

    def __str__(self) -> str:
        return "string"


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
