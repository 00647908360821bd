"""Text of print(): a value of any type, with the names and types of its members (Dynamic Tracing
Guide, "print"; the layout is that of libdtrace's dt_print.c).

Integers are hexadecimal, enumerations and pointers to functions have names, characters are quoted,
char arrays are strings. Members are indented by four blanks a level."""

from __future__ import annotations

import struct
from collections.abc import Callable

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import (
    ArrayType,
    DType,
    EnumType,
    FloatType,
    FunctionType,
    IntType,
    PointerType,
    StringType,
    StructType,
    VoidType,
    is_char,
)

INDENT = 4
Symbolise = Callable[[int], str]


def print_value(type_: DType, data: bytes, symbolise: Symbolise) -> str:
    """Return the text of print() for a value.

    Args:
        type_: type of the value.
        data: bytes of the value.
        symbolise: returns module`function of an address.
    """
    out: list[str] = []
    _Printer(data, symbolise, out).member("", type_, 0, 0, 0, 0)
    text = "".join(out)
    # The outermost brace does not end its line.
    return text.removesuffix("\n") if isinstance(type_, StructType) else text


def _size(type_: DType) -> int:
    if isinstance(type_, ArrayType):
        return _size(type_.of) * type_.count
    if isinstance(type_, IntType | PointerType | StructType | FloatType | StringType):
        return type_.size
    return 0


def _hex(value: int) -> str:
    return f"{value:#x}" if value else "0"


def _character(value: int) -> str:
    if 0x20 <= value <= 0x7E:
        return f"'{chr(value)}'"
    return "'\\0'" if value == 0 else f"'\\{value:03o}'"


def _name_of(type_: DType) -> str:
    """Return the name of a type, as libctf's ctf_type_name() does. The name of a structure without
    a tag ends in a blank.
    """
    text = str(type_)
    if isinstance(type_, StructType) and not type_.name and not type_.alias:
        return text + " "
    return text


@dataclass(frozen=True, slots=True)
class _Printer:
    data: bytes
    symbolise: Symbolise
    out: list[str]

    def _number(self, bit: int, size: int) -> int:
        at = bit // 8
        return int.from_bytes(self.data[at : at + size], "little")

    def member(self, name: str, type_: DType, bit: int, bits: int, depth: int, nest: int) -> None:
        """Append the text of a member to the output. The whole value, and an element of an array,
        count as members without a name.

        Args:
            name: name of the member, "" if it has none.
            type_: type of the member.
            bit: offset in bits of the member from the start of the data.
            bits: width of a bit-field in bits, 0 for any other member.
            depth: number of structures around the member; in an array, only those inside the
                array's element count.
            nest: levels of indentation of the array's elements, 0 if the member is not in an array.
        """
        structured = isinstance(type_, StructType)
        element = nest != 0 and depth == 0
        brief = element and not structured
        if not brief:
            if element:
                self.out.append("\n")
            self.out.append(" " * (INDENT * (depth + nest)) + self._head(name, type_, bit, bits))
        self._value(type_, bit, bits, depth, nest)
        if not brief:
            self.out.append("\n")

    def _head(self, name: str, type_: DType, bit: int, bits: int) -> str:
        text = _name_of(type_)
        if not name:
            return text + " "
        text += name if text[-1] in "* " else f" {name}"
        if isinstance(type_, IntType) and not isinstance(type_, EnumType) and bits:
            whole = bits % 8 == 0 and bit % 8 == 0 and bits == 8 * type_.size
            text += "" if whole else f" :{bits}"
        return text + " = "

    def _value(self, type_: DType, bit: int, bits: int, depth: int, nest: int) -> None:
        add = self.out.append
        if isinstance(type_, StructType):
            self._structure(type_, bit, depth, nest)
        elif isinstance(type_, ArrayType):
            self._array(type_, bit, depth, nest)
        elif isinstance(type_, StringType):
            text = self.data[bit // 8 :].partition(b"\0")[0]
            shown = f'"{text.decode("utf-8", "surrogateescape")}"'
            add(shown if depth == 0 else f"[ {shown} ]")
        elif isinstance(type_, IntType):
            add(self._integer(type_, bit, bits))
        elif isinstance(type_, PointerType):
            add(self._pointer(type_, self._number(bit, type_.size)))
        elif isinstance(type_, FloatType):
            add(self._float(type_, bit))
        else:
            assert isinstance(type_, VoidType | FunctionType)
            add("<forward decl>")

    def _integer(self, type_: IntType, bit: int, bits: int) -> str:
        if bits:
            size = (bit % 8 + bits + 7) // 8
            value = self._number(bit, size) >> bit % 8 & (1 << bits) - 1
        else:
            value = self._number(bit, type_.size)
        if isinstance(type_, EnumType):
            width = bits or 8 * type_.size
            signed = value - (1 << width) if type_.signed and value >> (width - 1) else value
            return type_.name_of(signed) or type_.name_of(value) or str(signed)
        if is_char(type_) and not bits:
            return _character(value)
        return _hex(value)

    def _pointer(self, type_: PointerType, value: int) -> str:
        if isinstance(type_.to, FunctionType) and value:
            return self.symbolise(value).partition("+")[0]
        return _hex(value)

    def _float(self, type_: FloatType, bit: int) -> str:
        raw = self.data[bit // 8 : bit // 8 + type_.size]
        if type_.size in (4, 8) and len(raw) == type_.size:
            return f"{struct.unpack('<f' if type_.size == 4 else '<d', raw)[0]:+.7e}"
        return "<unknown encoding>"

    def _structure(self, type_: StructType, bit: int, depth: int, nest: int) -> None:
        if not type_.size and not type_.members:
            self.out.append("<forward decl>")
            return
        self.out.append("{\n")
        for one in type_.members:
            if one.name or isinstance(one.type, StructType):
                self.member(one.name, one.type, bit + one.bit, one.bits, depth + 1, nest)
        self.out.append(" " * (INDENT * (depth + nest)) + "}")

    def _array(self, type_: ArrayType, bit: int, depth: int, nest: int) -> None:
        add = self.out.append
        size = _size(type_.of)
        if is_char(type_.of):
            raw = self.data[bit // 8 : bit // 8 + type_.count]
            text, nul, _ = raw.partition(b"\0")
            if nul and all(0x20 <= c <= 0x7E for c in text):
                shown = f'"{text.decode("ascii")}"'
                add(shown if depth == 0 else f"[ {shown} ]")
                return
        structured = isinstance(type_.of, StructType)
        add("[ ")
        for i in range(type_.count):
            inner = bit + 8 * size * i
            if structured:
                self._element(type_.of, inner, nest + depth + 1)
            else:
                self.member("", type_.of, inner, 0, 0, nest + depth + 1)
            if i != type_.count - 1:
                add(", ")
            elif structured:
                add("\n")
        add(" " * (INDENT * (depth + nest)) if structured else " ")
        add("]")

    def _element(self, type_: DType, bit: int, nest: int) -> None:
        """Append the text of an array's element that is a structure, without the newline at its
        end.
        """
        inner: list[str] = []
        _Printer(self.data, self.symbolise, inner).member("", type_, bit, 0, 0, nest)
        self.out.append("".join(inner).removesuffix("\n"))
