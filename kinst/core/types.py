"""Where the types of the traced kernel come from: the protocol between the files that know
them (image) and the D compiler.

Tested by tests/image/test_type_files.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kinst.core.dtypes import ArrayType, DType, EnumType, FunctionType, PointerType, StructType
from kinst.core.errors import KinstError

KERNEL = "vmlinux"  # what kinst calls the module of the kernel proper, of whatever system


class AmbiguousNameError(KinstError):
    """A name of values of several enumerations that differ."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable or function of the kernel or of a module.

    address: as linked in the kernel's file; in a module's, offset in `section`.
    type: None where the debug information has none for it.  per_cpu: every CPU has its own.
    """

    module: str
    name: str
    address: int
    size: int
    type: DType | None
    section: str = ""
    per_cpu: bool = False


class TypeSource(Protocol):
    """Types and symbols by name, out of files; nothing is opened before it is asked for.

    module: "" for any (the kernel proper first), KERNEL, or a module's name.  Every method
    raises KinstError when a file that it needs is missing or damaged, or there is no such
    module.
    """

    def tagged(self, kind: str, name: str, module: str = "") -> DType | None:
        """The struct, union or enum (kind) with this tag."""
        ...

    def typedef(self, name: str, module: str = "") -> DType | None:
        """The type that a typedef (or base type) names."""
        ...

    def enumerator(self, name: str, module: str = "") -> tuple[EnumType, int] | None:
        """An enumeration constant: its type and value.  Raises AmbiguousNameError."""
        ...

    def symbol(self, name: str, module: str = "") -> Symbol | None:
        """A variable or function of this name, global ones first."""
        ...

    def function(self, name: str, module: str = "") -> FunctionType | None:
        """The prototype of a function."""
        ...

    def local(self, function: str, variable: str, module: str = "") -> DType | None:
        """The type of a local variable or parameter somewhere in a function."""
        ...

    def locals(self, function: str, module: str = "") -> Sequence[str]:
        """The names of all of them, parameters first."""
        ...

    def modules(self) -> Sequence[str]:
        """The names of the modules whose types can be asked for, KERNEL first."""
        ...


def as_named(type_: DType, types: TypeSource) -> DType:
    """The type of the same name that the program's own names mean: a structure of DWARF is
    then the one that `struct NAME` is."""
    if isinstance(type_, StructType) and type_.name:
        found = types.tagged(type_.kind, type_.name)
        same = isinstance(found, StructType) and found.size == type_.size
        return found if found is not None and same else type_
    if isinstance(type_, PointerType):
        inner = as_named(type_.to, types)
        return type_ if inner is type_.to else PointerType(inner)
    if isinstance(type_, ArrayType):
        inner = as_named(type_.of, types)
        return type_ if inner is type_.of else ArrayType(inner, type_.count)
    return type_
