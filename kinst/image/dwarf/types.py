"""D types from DWARF (DWARF 5, chapter 5): types that BTF lacks, and all types of kernels without
BTF.

A type is read when it is needed, and so are the members of a structure. For a file without BTF,
enumeration constants are looked up in a table by name. Making the table of a kernel's 16,000 names
takes a second, so it is saved in a cache file of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from kinst.core.dtypes import (
    VOID,
    ArrayType,
    DType,
    EnumType,
    FloatType,
    FunctionType,
    Member,
    PointerType,
    StructType,
    named,
)
from kinst.core.errors import KinstError
from kinst.image import saved_arrays
from kinst.image.dwarf.dies import Die, Dies
from kinst.image.dwarf.index import Index, NamedDie
from kinst.image.dwarf.numbers import (
    AT_BYTE_SIZE,
    AT_DECLARATION,
    AT_NAME,
    FORM_SDATA,
    TAG_BASE_TYPE,
    TAG_ENUMERATION,
    TAG_STRUCTURE,
    TAG_SUBPROGRAM,
    TAG_TYPEDEF,
    TAG_UNION,
    TAG_VARIABLE,
)
from kinst.image.saved_arrays import Arrays
from kinst.image.type_names import integer, qualified

TAG_ARRAY, TAG_MEMBER, TAG_POINTER, TAG_SUBROUTINE = 0x01, 0x0D, 0x0F, 0x15
TAG_UNSPECIFIED_PARAMETERS, TAG_SUBRANGE = 0x18, 0x21
TAG_PARAMETER, TAG_CONST, TAG_VOLATILE, TAG_RESTRICT, TAG_ATOMIC = 0x05, 0x26, 0x35, 0x37, 0x47
TAG_UNSPECIFIED = 0x3B
TAG_ENUMERATOR, AT_CONST_VALUE = 0x28, 0x1C
AT_BIT_SIZE, AT_BIT_OFFSET, AT_UPPER_BOUND = 0x0D, 0x0C, 0x2F
AT_COUNT, AT_MEMBER_LOCATION, AT_ENCODING, AT_TYPE = 0x37, 0x38, 0x3E, 0x49
AT_DATA_BIT_OFFSET, AT_ABSTRACT_ORIGIN, AT_SPECIFICATION = 0x6B, 0x31, 0x47
# DW_ATE_*: boolean, float, signed, signed_char, unsigned, unsigned_char, UTF.
SIGNED_ENCODINGS, FLOAT_ENCODINGS = (0x05, 0x06), (0x03, 0x04)
OP_PLUS_UCONST = 0x23
MAX_DEPTH = 64
_QUALIFIERS = {
    TAG_CONST: "const", TAG_VOLATILE: "volatile", TAG_RESTRICT: "restrict", TAG_ATOMIC: "_Atomic",
}  # fmt: skip
_KINDS = {TAG_STRUCTURE: "struct", TAG_UNION: "union"}


class DwarfTypes:
    """D types of one debug file, by name and by DIE. Implements core.dtypes.MemberSource."""

    def __init__(self, dies: Dies, index: Index, module: str, names: EnumeratorNames) -> None:
        self.module = module
        self._names = names
        self._dies = dies
        self._index = index
        self._known: dict[int, DType] = {}

    def tagged(self, kind: str, name: str) -> DType | None:
        """Return the struct, union or enum with this tag; None if DWARF has no complete type with
        it.

        Args:
            kind: "struct", "union" or "enum".
        """
        return self._first_of(self._index.types(name), (kind,))

    def typedef(self, name: str) -> DType | None:
        """Return the type that a typedef's or base type's name stands for; None if DWARF has no
        such name."""
        return self._first_of(self._index.types(name), ("typedef", "base"))

    def variable(self, name: str) -> DType | None:
        """Return the type of the variable at file scope with this name; None if DWARF lacks it."""
        for found in self._index.variables(name):
            return self.of(self._dies.die(found.die))
        return None

    def function(self, name: str) -> FunctionType | None:
        """Return the prototype of the first function with this name; None if DWARF lacks it."""
        for found in self._index.functions(name):
            return self.prototype(self._dies.die(found.die), 0)
        return None

    def enumerators(self, name: str) -> list[tuple[EnumType, int]]:
        """Return (enumeration, value) for each enumeration that has a constant of this name."""
        enumerators = []
        for offset in self._names.enumerations(name):
            type_ = self.at(offset)
            if isinstance(type_, EnumType) and name in dict(type_.values):
                enumerators.append((type_, dict(type_.values)[name]))
        return enumerators

    def _first_of(self, candidates: Sequence[NamedDie], kinds: Sequence[str]) -> DType | None:
        return next(
            (self.at(candidate.die) for candidate in candidates if candidate.kind in kinds), None
        )

    def of(self, die: Die, depth: int = 0) -> DType:
        """Return the type of a variable, parameter or member (DW_AT_type of its DIE); VOID if the
        DIE has no type.

        Args:
            depth: number of references that were followed to reach this DIE; 0 from outside. A
                limit ends the reading of damaged DWARF.
        """
        # A variable's definition may leave its type to its declaration.
        for also in (AT_ABSTRACT_ORIGIN, AT_SPECIFICATION):
            if AT_TYPE not in die.attributes and also in die.attributes and depth < MAX_DEPTH:
                return self.of(self._dies.die(die.number(also)), depth + 1)
        return self.at(die.number(AT_TYPE), depth) if AT_TYPE in die.attributes else VOID

    def at(self, offset: int, depth: int = 0) -> DType:
        """Return the type that the DIE at an offset in .debug_info describes.

        Args:
            depth: number of references that were followed to reach this type; 0 from outside. A
                limit ends the reading of damaged DWARF, whose references may form a circle.

        Raises:
            KinstError: the debug information is damaged, or the type's kind is unknown.
        """
        if depth > MAX_DEPTH:
            raise KinstError(f"damaged debug information of {self.module}: type at {offset:#x}")
        if offset not in self._known:
            self._known[offset] = self._made(self._dies.die(offset), depth + 1)
        return self._known[offset]

    def _made(self, die: Die, depth: int) -> DType:
        name, size = die.text(AT_NAME), die.number(AT_BYTE_SIZE)
        if die.tag == TAG_BASE_TYPE:
            encoding = die.number(AT_ENCODING)
            if encoding in FLOAT_ENCODINGS or size not in (1, 2, 4, 8):
                return FloatType(size, name)
            return integer(name, size, encoding in SIGNED_ENCODINGS)
        if die.tag in _KINDS:
            key = f"{self.module} {die.offset:#x}"
            whole = 0 if die.number(AT_DECLARATION) else size
            return StructType(_KINDS[die.tag], name, whole, key, self)
        if die.tag == TAG_POINTER:
            return PointerType(self.of(die, depth))
        if die.tag == TAG_ENUMERATION:
            return EnumType(
                size or 4, True, f"enum {name}".rstrip(), enumerators_of(self._dies, die)
            )
        if die.tag == TAG_TYPEDEF:
            return named(self.of(die, depth), name)
        if die.tag in _QUALIFIERS:
            return qualified(self.of(die, depth), _QUALIFIERS[die.tag])
        if die.tag == TAG_ARRAY:
            return self._array(die, depth)
        if die.tag in (TAG_SUBROUTINE, TAG_SUBPROGRAM):
            return self.prototype(die, depth)
        if die.tag in (TAG_UNSPECIFIED, TAG_VARIABLE):
            return VOID
        raise KinstError(
            f"the debug information of {self.module} has a type of an unknown kind"
            f" ({die.tag:#x}, at {die.offset:#x})"
        )

    def _array(self, die: Die, depth: int) -> DType:
        counts = []
        for child in self._dies.children(die):
            if child.tag in (TAG_SUBRANGE, TAG_ENUMERATION):
                count = child.number(AT_COUNT, -1)
                bound = child.number(AT_UPPER_BOUND, -1)
                counts.append(count if count >= 0 else bound + 1 if bound < 1 << 31 else 0)
        type_ = self.of(die, depth)
        for count in reversed(counts or [0]):
            type_ = ArrayType(type_, count)
        return type_

    def prototype(self, die: Die, depth: int) -> FunctionType:
        """Return the parameters and result of a function, given its DIE (or that of a function
        type).

        Args:
            depth: number of references that were followed to reach this DIE. A limit ends the
                reading of damaged DWARF.
        """
        result = self.of(die, depth)
        origin = die.number(AT_ABSTRACT_ORIGIN)
        if origin and depth < MAX_DEPTH:
            return self.prototype(self._dies.die(origin), depth + 1)
        parameters: list[DType] = []
        variadic = False
        for child in self._dies.children(die):
            if child.tag == TAG_PARAMETER:
                parameters.append(self.of(child, depth))
            variadic = variadic or child.tag == TAG_UNSPECIFIED_PARAMETERS
        return FunctionType(result, tuple(parameters), variadic)

    def members(self, struct: StructType) -> Sequence[Member]:
        die = self._dies.die(int(struct.key.rpartition(" ")[2], 16))
        members = []
        for child in self._dies.children(die):
            if child.tag == TAG_MEMBER:
                bit, bits = _bits_of(child)
                members.append(Member(child.text(AT_NAME), self.of(child), bit, bits))
        return tuple(members)


def _bits_of(member: Die) -> tuple[int, int]:
    """Return (first bit, width) of a structure's member, given its DIE (DWARF 5, section 5.7.6);
    the width is 0 unless the member is a bit-field."""
    location = member.attributes.get(AT_MEMBER_LOCATION, 0)
    if isinstance(location, bytes):
        # DWARF 2: an expression, DW_OP_plus_uconst N.
        value = shift = 0
        for byte in location[1:] if location[:1] == bytes([OP_PLUS_UCONST]) else b"":
            value |= (byte & 127) << shift
            shift += 7
        location = value
    at = 8 * location if isinstance(location, int) else 0
    bits = member.number(AT_BIT_SIZE)
    if AT_DATA_BIT_OFFSET in member.attributes:
        return at + member.number(AT_DATA_BIT_OFFSET), bits
    if bits and AT_BIT_OFFSET in member.attributes:
        # DWARF 2 and 3 count from the most significant bit of the storage unit.
        storage = 8 * (member.number(AT_BYTE_SIZE) or 4)
        return at + storage - member.number(AT_BIT_OFFSET) - bits, bits
    return at, bits


def enumerators_of(dies: Dies, die: Die) -> tuple[tuple[str, int], ...]:
    """Return (name, value) of each constant of an enumeration, given its DIE, in the order of the
    declaration."""
    enumerators = []
    for child in dies.children(die):
        if child.tag == TAG_ENUMERATOR:
            value = child.number(AT_CONST_VALUE)
            if child.forms.get(AT_CONST_VALUE) != FORM_SDATA and value >> 31 == 1:
                value -= 1 << 32
            enumerators.append((child.text(AT_NAME), value))
    return tuple(enumerators)


class EnumeratorNames:
    """The enumerations of one debug file, by the names of their constants."""

    def __init__(
        self, dies: Dies, enumerations: Sequence[int], cache: tuple[Path, str] | None = None
    ) -> None:
        """Describe the table of constants' names; it is loaded or made when it is first needed.

        Args:
            dies: access to DIEs.
            enumerations: offsets in .debug_info of all enumerations.
            cache: the folder of saved tables, and the debug file's key (key_of()); None to save
                nothing.
        """
        self._dies = dies
        self._enumerations = enumerations
        self._cache = cache

    def enumerations(self, name: str) -> Sequence[int]:
        """Return the offsets in .debug_info of the enumerations that have a constant of this name.
        Raises KinstError for damaged debug information."""
        name_bytes = name.encode("utf-8", "surrogateescape")
        text, at = self._table["text"], self._table["at"]

        def name_of(row: int) -> bytes:
            return bytes(text[at[row] : at[row + 1]])

        rows = range(len(at) - 1)
        first, last = (side(rows, name_bytes, key=name_of) for side in (bisect_left, bisect_right))
        return [int(die) for die in self._table["die"][first:last]]

    @cached_property
    def _table(self) -> Arrays:
        """Table of the constants' names and their enumerations, as arrays.

        `text` has the names, sorted by their bytes and joined.
        `at` has the offset of each name in `text`; its last element is the length of `text`.
        `die` has the offset in .debug_info of each name's enumeration.
        """
        if self._cache is None:
            return self._made()
        folder, key = self._cache
        path, key = folder / f"enumerators-{key}.index", f"enumerators {key}"
        table = saved_arrays.load(path, key)
        if table is None:
            table = self._made()
            saved_arrays.save(path, key, table)
        return table

    def _made(self) -> Arrays:
        rows = sorted(
            (name.encode(), int(offset))  # bytes that are not UTF-8 have been replaced
            for offset in self._enumerations
            for name, _ in enumerators_of(self._dies, self._dies.die(int(offset)))
        )
        lengths = np.array([0, *(len(name) for name, _ in rows)], dtype=np.int64)
        text = b"".join(name for name, _ in rows)
        return {
            "text": np.frombuffer(text, dtype=np.uint8),
            "at": np.cumsum(lengths).astype(np.uint32),
            "die": np.array([offset for _, offset in rows], dtype=np.uint64),
        }
