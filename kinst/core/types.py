"""Types of the traced kernel: the protocol between the files that have them (image) and the D
compiler.

Tested by tests/image/test_type_files.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kinst.core.dtypes import ArrayType, DType, EnumType, FunctionType, PointerType, StructType
from kinst.core.errors import KinstError

KERNEL = "vmlinux"  # module name of the kernel proper, of any system


class AmbiguousNameError(KinstError):
    """Several enumerations give a name different values."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable or function of the kernel or of a module.

    Attributes:
        address: as linked in the kernel's file; in a module's file, offset in `section`.
        type: None if the debug information has none for it.
        per_cpu: whether every CPU has its own.
    """

    module: str
    name: str
    address: int
    size: int
    type: DType | None
    section: str = ""
    per_cpu: bool = False


class TypeSource(Protocol):
    """Types and symbols by name, from files. Nothing is opened before it is needed.

    module: "" for any (the kernel proper first), KERNEL, or a module's name. Every method raises
    KinstError if a file that it needs is missing or damaged, or there is no such module."""

    def tagged(self, kind: str, name: str, module: str = "") -> DType | None:
        """Return the struct, union or enum (kind) with this tag."""
        ...

    def typedef(self, name: str, module: str = "") -> DType | None:
        """Return the type that a typedef (or base type) names."""
        ...

    def enumerator(self, name: str, module: str = "") -> tuple[EnumType, int] | None:
        """Return the type and the value of an enumeration constant. Raises AmbiguousNameError."""
        ...

    def symbol(self, name: str, module: str = "") -> Symbol | None:
        """Return a variable or function of this name, global ones first."""
        ...

    def function(self, name: str, module: str = "") -> FunctionType | None:
        """Return the prototype of a function."""
        ...

    def local(self, function: str, variable: str, module: str = "") -> DType | None:
        """Return the type of a local variable or parameter anywhere in a function."""
        ...

    def locals(self, function: str, module: str = "") -> Sequence[str]:
        """Return the names of a function's local variables, parameters first."""
        ...

    def modules(self) -> Sequence[str]:
        """Return the names of the modules that have types, KERNEL first."""
        ...


def as_named(type_: DType, types: TypeSource) -> DType:
    """Return the type that the program's own names mean by this one's name: `struct NAME` for a
    structure of DWARF."""
    if isinstance(type_, StructType) and type_.name:
        tagged = types.tagged(type_.kind, type_.name)
        same = isinstance(tagged, StructType) and tagged.size == type_.size
        return tagged if tagged is not None and same else type_
    if isinstance(type_, PointerType):
        inner = as_named(type_.to, types)
        return type_ if inner is type_.to else PointerType(inner)
    if isinstance(type_, ArrayType):
        inner = as_named(type_.of, types)
        return type_ if inner is type_.of else ArrayType(inner, type_.count)
    return type_
