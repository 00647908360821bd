"""The protocol for types of the traced kernel: kinst.image implements it, and the D compiler asks
it.

Tested by tests/image/test_type_files.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import ArrayType, DType, EnumType, FunctionType, PointerType, StructType
from kinst.core.errors import KinstError

KERNEL = "vmlinux"  # module name of the kernel proper, of any system
PROGRAM = "a.out"  # module name of a user program, as DTrace's pid provider has it


class AmbiguousNameError(KinstError):
    """An error: several enumerations define the same name with different values."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable or function of the kernel or of a module.

    Attributes:
        address: address as linked in the kernel's file; for a module, offset in `section`.
        type: None if the debug information has no type for the symbol.
        per_cpu: whether every CPU has its own copy of the variable.
    """

    module: str
    name: str
    address: int
    size: int
    type: DType | None
    section: str = ""
    per_cpu: bool = False


class TypeSource(Protocol):
    """Types and symbols by name, from files with debug information. Each file is opened when it is
    first needed.

    The argument `module` is KERNEL, a module's name, or "" for any (the kernel proper first).
    Results are None if there is no such type or symbol. Every method raises KinstError if a file
    that it needs is missing or damaged, or if there is no such module."""

    def tagged(self, kind: str, name: str, module: str = "") -> DType | None:
        """Return the type "kind name", such as "struct file"; None if there is no such type. `kind`
        is struct, union or enum."""
        ...

    def typedef(self, name: str, module: str = "") -> DType | None:
        """Return the type that this typedef or base type names; None if there is no such type."""
        ...

    def enumerator(self, name: str, module: str = "") -> tuple[EnumType, int] | None:
        """Return the type and the value of an enumeration constant; None if there is no such
        constant. Raises AmbiguousNameError if several enumerations give the name different values.
        """
        ...

    def symbol(self, name: str, module: str = "") -> Symbol | None:
        """Return the variable or function with this name; a global symbol is preferred. None if
        there is none."""
        ...

    def function(self, name: str, module: str = "") -> FunctionType | None:
        """Return the prototype of the function with this name; None if no function has it."""
        ...

    def tracepoint(self, name: str) -> FunctionType | None:
        """Return the prototype of the functions that a tracepoint calls."""
        ...

    def lacks_function(self, name: str) -> bool:
        """Return whether no file has a function with this name, inline functions included. False if
        one may have it. This never takes long."""
        ...

    def similar_functions(self, name: str) -> Sequence[str]:
        """Return the names of functions that are spelt almost like a name, the most similar first;
        () if there are none. For hints: this never takes long."""
        ...

    def similar_tracepoints(self, name: str) -> Sequence[str]:
        """Return the names of tracepoints that are spelt almost like a name, in the same way."""
        ...

    def local(self, function: str, variable: str, module: str = "") -> DType | None:
        """Return the type of a function's local variable or parameter, in whichever block of the
        function it is declared; None if the function has no such variable.
        """
        ...

    def locals(self, function: str, module: str = "") -> Sequence[str]:
        """Return the names of a function's parameters, then those of its local variables."""
        ...

    def modules(self) -> Sequence[str]:
        """Return the names of all modules that have types, KERNEL first."""
        ...


def as_named(type_: DType, types: TypeSource) -> DType:
    """Return the type that D programs use for a variable of a given type.

    For a structure or union, this is the type of `types` with the same tag and size, if there is
    one. Pointers to a structure, and arrays of structures, are changed in the same way. Any other
    type is returned as it is.

    Args:
        type_: the type of a local variable, as DWARF describes it.
        types: the types of the traced kernel.
    """
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
