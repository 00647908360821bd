"""Reader of BTF, the kernel's compact type information: offsets of structure members, type records,
names of types.

The word index at which each type's record starts is computed once (0.1 s for a kernel) and saved in
the user's cache folder by build-id; the records themselves are read from the ELF file. Format: the
kernel's Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image import saved_arrays
from kinst.image.elf import Elf
from kinst.image.string_index import StringIndex

MAGIC = 0xEB9F
HEADER_SIZE = 24

KIND_INT, KIND_PTR, KIND_ARRAY, KIND_STRUCT, KIND_UNION, KIND_ENUM = 1, 2, 3, 4, 5, 6
KIND_FWD, KIND_TYPEDEF, KIND_VOLATILE, KIND_CONST, KIND_RESTRICT = 7, 8, 9, 10, 11
KIND_FUNC, KIND_FUNC_PROTO, KIND_VAR, KIND_DATASEC, KIND_FLOAT = 12, 13, 14, 15, 16
KIND_DECL_TAG, KIND_TYPE_TAG, KIND_ENUM64 = 17, 18, 19

# Words after the three fixed words of a type's record: a number for the kind, and a number for
# each of the record's vlen entries.
FIXED_WORDS = {KIND_INT: 1, KIND_ARRAY: 3, KIND_VAR: 1, KIND_DECL_TAG: 1}
ENTRY_WORDS = {
    KIND_STRUCT: 3,
    KIND_UNION: 3,
    KIND_ENUM: 2,
    KIND_FUNC_PROTO: 2,
    KIND_DATASEC: 3,
    KIND_ENUM64: 3,
}
# Kinds that only qualify or name another type.
TRANSPARENT = {KIND_TYPEDEF, KIND_VOLATILE, KIND_CONST, KIND_RESTRICT, KIND_TYPE_TAG}

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BtfMember:
    """A member of a structure, as BTF describes it.

    Attributes:
        bit: offset from the structure's start, in bits.
        bits: width of a bit-field, 0 otherwise.
        size: bytes of the member's type.
        type: id of that type.
    """

    bit: int
    bits: int
    size: int
    type: int

    @property
    def offset(self) -> int:
        """Bytes from the structure's start to the byte that holds the member's first bit."""
        return self.bit // 8


class Btf:
    """Type information (BTF) of one image: types by name and by id. open_btf() makes it."""

    def __init__(self, where: str, words: U32, strings: bytes, starts: U32) -> None:
        self._where = where
        self._words = words
        self._strings = strings
        self._starts = starts  # word index of type id i + 1; type 0 is void
        self._members: dict[tuple[str, str], BtfMember] = {}  # that member() has found

    def __len__(self) -> int:
        return len(self._starts)

    def offset(self, struct: str, path: str) -> int:
        """Return the byte offset of a structure's member, which is given by a dotted path. Raises
        KinstError for a bit-field, or if the structure or member does not exist."""
        member = self.member(struct, path)
        if member.bits:
            raise KinstError(
                f"{self._where}: {struct}.{path} is a bit-field, which has no offset in bytes"
            )
        return member.offset

    def has(self, struct: str, path: str = "") -> bool:
        """Return whether BTF has a structure of this name and, if `path` is given, the structure
        has this member."""
        try:
            self.member(struct, path) if path else self.size(struct)
        except KinstError:
            return False
        return True

    def member(self, struct: str, path: str) -> BtfMember:
        """Return a structure's member, given by its dotted path; the offset is from the start of
        `struct`.

        Members of an anonymous member belong to the outer structure.

        Raises:
            KinstError: the kernel has no such structure or member; the message names it.
        """
        member = self._members.get((struct, path))
        if member is not None:
            return member
        candidates = self._named(struct)
        if not candidates:
            raise KinstError(f"{self._where}: the kernel's types have no struct {struct}")
        for candidate in candidates:
            member = self._walk(candidate, path)
            if member is not None:
                self._members[struct, path] = member
                return member
        raise KinstError(f"{self._where}: struct {struct} has no member {path}")

    def size(self, struct: str) -> int:
        """Return the size of a structure in bytes. Raises KinstError if BTF has no structure of
        this name."""
        candidates = self._named(struct)
        if not candidates:
            raise KinstError(f"{self._where}: the kernel's types have no struct {struct}")
        return int(self._words[int(self._starts[candidates[0] - 1]) + 2])

    def enumerator(self, name: str) -> int | None:
        """Return the value of the enumeration constant with this name; None if no enumeration has
        it."""
        for kind in (KIND_ENUM, KIND_ENUM64):
            names, positions = self._enumerators[kind]
            hits = np.flatnonzero(np.isin(names, self.string_offsets(name)))
            if len(hits):
                at = int(positions[hits[0]])
                high = int(self._words[at + 2]) << 32 if kind == KIND_ENUM64 else 0
                return high | int(self._words[at + 1])
        return None

    @cached_property
    def _enumerators(self) -> dict[int, tuple[U32, I64]]:
        """All enumeration constants, by KIND_ENUM and KIND_ENUM64. Two columns for each kind: the
        string offsets of the constants' names, and the word indexes of the constants' entries."""
        found = {}
        for kind in (KIND_ENUM, KIND_ENUM64):
            rows, step = np.flatnonzero(self._info >> 24 & 31 == kind), ENTRY_WORDS[kind]
            counts = (self._info[rows] & 0xFFFF).astype(np.int64)
            firsts = self._starts[rows].astype(np.int64) + 3
            before = np.cumsum(counts) - counts
            numbers = np.arange(int(counts.sum())) - np.repeat(before, counts)
            positions = np.repeat(firsts, counts) + step * numbers
            found[kind] = self._words[positions], positions
        return found

    def record(self, type_id: int) -> tuple[int, int, int, int]:
        """Return the first three words of a type's record, and the index of the word after them.

        The words (struct btf_type) are the info word, the string offset of the type's name, and a
        size or a type id.
        """
        at = int(self._starts[type_id - 1])
        name, info, third = (int(w) for w in self._words[at : at + 3])
        return info, name, third, at + 3

    def words_at(self, at: int, count: int) -> list[int]:
        """Return `count` words of BTF's type section from the word index `at` on; fewer if the
        section ends before."""
        found: list[int] = self._words[at : at + count].tolist()
        return found

    def text(self, offset: int) -> str:
        """Return the string at an offset of BTF's string section; "" if no string is there."""
        end = self._strings.find(b"\0", offset)
        return self._strings[offset:end].decode("utf-8", "replace") if end > offset else ""

    def named(self, names: Sequence[int], kinds: Sequence[int]) -> list[int]:
        """Return the ids of the types that have one of these kinds (KIND_*) and whose name is at
        one of these string offsets, in ascending order."""
        hits = np.isin(self._names, np.array(names, dtype=np.uint32))
        hits &= np.isin(self._info >> 24 & 31, np.array(kinds, dtype=np.uint32))
        return [int(i) + 1 for i in np.flatnonzero(hits)]

    def enumerations(self, names: Sequence[int]) -> list[int]:
        """Return the ids of the enumerations that have a constant whose name is at one of these
        string offsets, in ascending order."""
        offsets = np.array(names, dtype=np.uint32)
        enumerations: list[int] = []
        kinds = self._info >> 24 & 31
        for kind in (KIND_ENUM, KIND_ENUM64) if names else ():
            step = ENTRY_WORDS[kind]
            for index in np.flatnonzero(kinds == kind).tolist():
                start = int(self._starts[index]) + 3
                entries = step * int(self._info[index] & 0xFFFF)
                if bool(np.isin(self._words[start : start + entries : step], offsets).any()):
                    enumerations.append(index + 1)
        return sorted(enumerations)

    @property
    def strings_size(self) -> int:
        """Bytes of the string section. If this is the kernel's BTF, string offsets of a module's
        BTF count on from this number."""
        return len(self._strings)

    @cached_property
    def _info(self) -> U32:
        return self._words[self._starts.astype(np.int64) + 1]

    @cached_property
    def _names(self) -> U32:
        return self._words[self._starts]

    def string_offsets(self, text: str) -> list[int]:
        """Return the offsets at which BTF's string section has this string as a whole string."""
        whole_string = b"\0" + text.encode() + b"\0"
        offsets, at = [], self._strings.find(whole_string)
        while at >= 0:
            offsets.append(at + 1)
            at = self._strings.find(whole_string, at + 1)
        return offsets

    def _named(self, name: str) -> list[int]:
        """Return the ids of the structures and unions of this name; several may have the same
        name."""
        rows, index = self._composites
        return [int(rows[i]) + 1 for i in index.find(name)]

    @cached_property
    def _composites(self) -> tuple[npt.NDArray[np.int64], StringIndex]:
        """Structures and unions with a name in this BTF's string section.

        Two values: their indexes (an index is the type id minus 1), and a StringIndex of their
        names, in the same order.
        """
        kinds = self._info >> 24 & 31
        named = (self._names > 0) & (self._names < len(self._strings))
        rows = np.flatnonzero(((kinds == KIND_STRUCT) | (kinds == KIND_UNION)) & named)
        return rows, StringIndex(self._strings, self._names[rows])

    def _resolve(self, type_id: int) -> int:
        """Return the id of the type that a typedef or qualifier stands for, or `type_id` itself if
        the type is neither; 0 for void or if the chain is damaged."""
        for _ in range(32):
            if not 0 < type_id <= len(self._starts):
                return 0
            if int(self._info[type_id - 1]) >> 24 & 31 not in TRANSPARENT:
                return type_id
            type_id = int(self._words[int(self._starts[type_id - 1]) + 2])
        return 0

    def _size_of(self, type_id: int) -> int:
        count = 1
        for _ in range(32):
            type_id = self._resolve(type_id)
            if not type_id:
                return 0
            start = int(self._starts[type_id - 1])
            kind = int(self._words[start + 1]) >> 24 & 31
            if kind == KIND_PTR:
                return 8 * count
            if kind != KIND_ARRAY:
                return int(self._words[start + 2]) * count
            count *= int(self._words[start + 5])
            type_id = int(self._words[start + 3])
        return 0

    def _walk(self, type_id: int, path: str) -> BtfMember | None:
        bit, member = 0, None
        for part in path.split("."):
            member = self._find(self._resolve(type_id), part, 0)
            if member is None:
                return None
            bit += member.bit
            type_id = member.type
        return None if member is None else BtfMember(bit, member.bits, member.size, member.type)

    def _find(self, type_id: int, name: str, depth: int) -> BtfMember | None:
        """Return the member `name` of a structure; None if the structure has no such member.

        The search includes the members of anonymous structures and unions inside the structure.

        Args:
            depth: nesting of the anonymous structure that is searched; 0 for the outermost
                structure. A limit ends the reading of damaged BTF.
        """
        if not type_id or depth > 16:
            return None
        start = int(self._starts[type_id - 1])
        info = int(self._words[start + 1])
        if info >> 24 & 31 not in (KIND_STRUCT, KIND_UNION):
            return None
        name_bytes = name.encode() + b"\0"
        words: list[int] = self._words[start + 3 :][: 3 * (info & 0xFFFF)].tolist()
        for name_at, member_type, where in zip(words[::3], words[1::3], words[2::3], strict=True):
            bit, bits = (where & 0xFFFFFF, where >> 24) if info >> 31 else (where, 0)
            if name_at == 0:
                inner = self._find(self._resolve(member_type), name, depth + 1)
                if inner is not None:
                    return BtfMember(bit + inner.bit, inner.bits, inner.size, inner.type)
            elif self._strings.startswith(name_bytes, name_at):
                return BtfMember(bit, bits, self._size_of(member_type), member_type)
        return None


def _index(words: U32, where: str) -> U32:
    """Return the word index at which each type's record starts, in the order of type ids from 1.
    Raises KinstError if the records are damaged."""
    extra_fixed = [FIXED_WORDS.get(kind, 0) + 3 for kind in range(32)]
    extra_entry = [ENTRY_WORDS.get(kind, 0) for kind in range(32)]
    infos: list[int] = words.tolist()
    end, at = len(infos), 0
    starts: list[int] = []
    add = starts.append
    while at + 3 <= end:
        info = infos[at + 1]
        kind = info >> 24 & 31
        if not KIND_INT <= kind <= KIND_ENUM64:
            raise KinstError(
                f"{where}: damaged .BTF: type {len(starts) + 1} has unknown kind {kind}"
            )
        add(at)
        at += extra_fixed[kind] + extra_entry[kind] * (info & 0xFFFF)
    if at != end:
        raise KinstError(f"{where}: damaged .BTF: the last type is cut off")
    return np.array(starts, dtype=np.uint32)


def parse_btf(data: bytes, where: str, saved: Path | None = None) -> Btf:
    """Parse the bytes of a .BTF section.

    Args:
        where: the file's path, for messages.
        saved: file in which the index of type records is cached, None to cache nothing.

    Raises:
        KinstError: the data are damaged.
    """
    if len(data) < HEADER_SIZE or int.from_bytes(data[:2], "little") != MAGIC:
        raise KinstError(f"{where}: damaged .BTF: no BTF header")
    header, type_at, type_size, string_at, string_size = (
        int.from_bytes(data[i : i + 4], "little") for i in (4, 8, 12, 16, 20)
    )
    types = data[header + type_at : header + type_at + type_size]
    strings = data[header + string_at : header + string_at + string_size]
    if len(types) != type_size or len(strings) != string_size or type_size % 4:
        raise KinstError(f"{where}: damaged .BTF: it is cut off")
    words = np.frombuffer(types, dtype="<u4")
    return Btf(where, words, strings, _starts(words, where, saved))


def _starts(words: U32, where: str, saved: Path | None) -> U32:
    """Return the word index of each type's record: load the list from `saved`, or compute it and
    save it there."""
    if saved is None:
        return _index(words, where)
    key = f"btf {len(words)} {zlib.crc32(words.tobytes()):08x}"
    arrays = saved_arrays.load(saved, key)
    if arrays is None:
        arrays = {"starts": _index(words, where)}
        saved_arrays.save(saved, key, arrays)
    return np.asarray(arrays["starts"], dtype=np.uint32)


def open_btf(elf: Elf, cache: Path | None = None) -> Btf | None:
    """Parse the .BTF section of an ELF file; return None if the file has no such section.

    Args:
        cache: the folder of saved indexes (cache_folder()), or None to save nothing.

    Raises:
        KinstError: the section is damaged.
    """
    section = elf.section(".BTF")
    if section is None or not section.size:
        return None
    saved = cache / f"btf-{elf.build_id}.index" if cache and elf.build_id else None
    return parse_btf(elf.data(section), str(elf.path), saved)
