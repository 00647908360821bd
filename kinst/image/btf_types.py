"""D types from the BTF of the kernel and of its modules (split BTF).

Type ids and string offsets of a module's BTF count on from the end of the kernel's. Format: the
kernel's Documentation/bpf/btf.rst.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
from kinst.image.btf import (
    HEADER_SIZE,
    KIND_ARRAY,
    KIND_CONST,
    KIND_DATASEC,
    KIND_ENUM,
    KIND_ENUM64,
    KIND_FLOAT,
    KIND_FUNC,
    KIND_FUNC_PROTO,
    KIND_FWD,
    KIND_INT,
    KIND_PTR,
    KIND_RESTRICT,
    KIND_STRUCT,
    KIND_TYPE_TAG,
    KIND_TYPEDEF,
    KIND_UNION,
    KIND_VAR,
    KIND_VOLATILE,
    Btf,
    open_btf,
    parse_btf,
)
from kinst.image.elf import Elf
from kinst.image.type_names import integer, qualified

SIGNED = 1
MAX_DEPTH = 64
_QUALIFIERS = {KIND_CONST: "const", KIND_VOLATILE: "volatile", KIND_RESTRICT: "restrict"}
_TAGGED = {"struct": (KIND_STRUCT,), "union": (KIND_UNION,), "enum": (KIND_ENUM, KIND_ENUM64)}


class BtfTypes:
    """D types of one image's BTF, by name and by type id. Implements core.dtypes.MemberSource."""

    def __init__(self, btf: Btf, module: str, base: BtfTypes | None = None) -> None:
        """Wrap parsed BTF.

        Args:
            btf: BTF of one image.
            module: the image's name in D.
            base: types of the kernel, if the image is a module; otherwise None.
        """
        self.module = module
        self._btf = btf
        self._base = base
        self._first = base.count if base else 0
        self._first_text = base.text_size if base else 0
        self._known: dict[int, DType] = {}

    @property
    def count(self) -> int:
        """The image's highest type id; the ids of a module's types start after the kernel's."""
        return self._first + len(self._btf)

    @property
    def text_size(self) -> int:
        return self._first_text + self._btf.strings_size

    def tagged(self, kind: str, name: str) -> DType | None:
        """Return the struct, union or enum with this tag; None if BTF does not define it (a
        declaration does not count).

        Args:
            kind: "struct", "union" or "enum".
        """
        return self._one(name, _TAGGED[kind])

    def typedef(self, name: str) -> DType | None:
        """Return the type that a typedef's or base type's name stands for; None if BTF has no such
        name."""
        return self._one(name, (KIND_TYPEDEF, KIND_INT, KIND_FLOAT))

    def function(self, name: str) -> FunctionType | None:
        """Return the prototype of the function with this name; None if BTF has no such function."""
        found = self._one(name, (KIND_FUNC,))
        return found if isinstance(found, FunctionType) else None

    def variable(self, name: str) -> DType | None:
        """Return the type of the variable with this name; None if BTF lacks it. BTF describes only
        per-CPU variables."""
        return self._one(name, (KIND_VAR,))

    def enumerators(self, name: str) -> list[tuple[EnumType, int]]:
        """Return (enumeration, value) for each enumeration that has a constant of this name."""
        enumerators = []
        for own in self._btf.enumerations(self._names(name)):
            type_ = self.type(self._first + own)
            if isinstance(type_, EnumType) and name in dict(type_.values):
                enumerators.append((type_, dict(type_.values)[name]))
        return enumerators

    def _one(self, name: str, kinds: Sequence[int]) -> DType | None:
        found = self._btf.named(self._names(name), kinds) if name else []
        return self.type(self._first + found[0]) if found else None

    def _names(self, name: str) -> list[int]:
        """Return the offsets at which this image's type records may refer to a name.

        A module's records can name strings of the kernel's BTF too. Offsets of the module's own
        strings start after the kernel's last string.
        """
        found = self._base._names(name) if self._base else []
        return found + [self._first_text + at for at in self._btf.string_offsets(name)]

    def type(self, type_id: int, depth: int = 0) -> DType:
        """Return the type with this id; for a module it may be one of the kernel's.

        Args:
            depth: number of references that were followed to reach this type; 0 from outside. A
                limit ends the reading of damaged BTF, whose references may form a circle.

        Raises:
            KinstError: BTF is damaged.
        """
        if type_id == 0:
            return VOID
        if self._base is not None and type_id <= self._first:
            return self._base.type(type_id, depth)
        if not self._first < type_id <= self.count or depth > MAX_DEPTH:
            raise KinstError(f"damaged .BTF of {self.module}: there is no type {type_id}")
        if type_id not in self._known:
            self._known[type_id] = self._made(type_id, depth + 1)
        return self._known[type_id]

    def _text(self, offset: int) -> str:
        if self._base is not None:
            if offset < self._first_text:
                return self._base._text(offset)
            offset -= self._first_text
        return self._btf.text(offset)

    def _made(self, type_id: int, depth: int) -> DType:
        info, name_at, third, at = self._btf.record(type_id - self._first)
        name = self._text(name_at)
        kind = info >> 24 & 31
        if kind == KIND_INT:
            word = self._btf.words_at(at, 1)[0]
            signed = bool(word >> 24 & SIGNED)
            if third not in (1, 2, 4, 8):
                return FloatType(third, name)
            return integer(name, third, signed)
        if kind == KIND_PTR:
            return PointerType(self.type(third, depth))
        if kind == KIND_ARRAY:
            of, _, count = self._btf.words_at(at, 3)
            return ArrayType(self.type(of, depth), count)
        if kind in (KIND_STRUCT, KIND_UNION):
            keyword = "struct" if kind == KIND_STRUCT else "union"
            return StructType(keyword, name, third, f"{self.module} {type_id}", self)
        if kind == KIND_FWD:
            keyword = "union" if info >> 31 else "struct"
            return StructType(keyword, name, 0, f"{self.module} {type_id}", self)
        if kind in (KIND_ENUM, KIND_ENUM64):
            return self._enumeration(info, name, third, at)
        if kind == KIND_FUNC_PROTO:
            return self._prototype(info, third, at, depth)
        if kind == KIND_TYPEDEF:
            return named(self.type(third, depth), name)
        if kind in _QUALIFIERS:
            return qualified(self.type(third, depth), _QUALIFIERS[kind])
        if kind in (KIND_FUNC, KIND_VAR, KIND_TYPE_TAG):
            return self.type(third, depth)
        if kind == KIND_FLOAT:
            return FloatType(third, name)
        assert kind >= KIND_DATASEC
        return VOID

    def _enumeration(self, info: int, name: str, size: int, at: int) -> EnumType:
        wide = (info >> 24 & 31) == KIND_ENUM64
        step, signed = (3, bool(info >> 31)) if wide else (2, True)
        words = self._btf.words_at(at, step * (info & 0xFFFF))
        values = []
        for i in range(0, len(words) - step + 1, step):
            value = words[i + 1] | (words[i + 2] << 32 if wide else 0)
            if signed and value >> (63 if wide else 31):
                value -= 1 << (64 if wide else 32)
            values.append((self._text(words[i]), value))
        return EnumType(size, signed, f"enum {name}".rstrip(), tuple(values))

    def _prototype(self, info: int, result: int, at: int, depth: int) -> FunctionType:
        words = self._btf.words_at(at, 2 * (info & 0xFFFF))
        ids = words[1::2]
        variadic = bool(ids) and ids[-1] == 0
        taken = tuple(self.type(i, depth) for i in (ids[:-1] if variadic else ids))
        names = tuple(map(self._text, words[: 2 * len(taken) : 2]))
        return FunctionType(self.type(result, depth), taken, variadic, names=names)

    def members(self, struct: StructType) -> Sequence[Member]:
        type_id = int(struct.key.rpartition(" ")[2])
        info, _, _, at = self._btf.record(type_id - self._first)
        if info >> 24 & 31 not in (KIND_STRUCT, KIND_UNION):
            return ()
        words = self._btf.words_at(at, 3 * (info & 0xFFFF))
        members = []
        for i in range(0, len(words) - 2, 3):
            where = words[i + 2]
            bit, bits = (where & 0xFFFFFF, where >> 24) if info >> 31 else (where, 0)
            members.append(Member(self._text(words[i]), self.type(words[i + 1]), bit, bits))
        return tuple(members)


def open_types(
    elf: Elf, module: str, base: BtfTypes | None = None, cache: Path | None = None
) -> BtfTypes | None:
    """Return the types in the .BTF section of an ELF file; None if the file has no such section.

    Args:
        module: the image's name in D.
        base: types of the kernel, if the file is a module; otherwise None.
        cache: folder of saved indexes, None to save nothing.

    Raises:
        KinstError: the section is damaged.
    """
    if base is None:
        btf = open_btf(elf, cache)
        return BtfTypes(btf, module) if btf else None
    section = elf.section(".BTF")
    if section is None or section.size <= HEADER_SIZE:
        return None
    return BtfTypes(parse_btf(elf.data(section), str(elf.path)), module, base)
