"""kinst's numbers of DWARF compared with readelf's names of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType

from kinst.image.dwarf import entry_values, expressions, locals, location_lists, numbers, types
from tests.image.dwarf_asm import Unit, Value, elf, uleb

MODULES = (numbers, types, entry_values, locals, location_lists, expressions)
NAME, EXPRESSION, IMPLICIT_CONSTANT = 0x03, 0x18, 0x21
# Parts by which readelf's names are longer.
ENDS = ("_type", "_block", "_stmt", "_unit")
STARTS = ("formal_", "data_")


def named(start: str, modules: tuple[ModuleType, ...] = MODULES) -> list[tuple[str, int]]:
    """Return (name in lower case, number) of the constants with such names."""
    return [
        (name.removeprefix(start).lower(), number)
        for module in modules
        for name, number in vars(module).items()
        if name.startswith(start) and isinstance(number, int)
    ]


def readelf(path: Path, what: str) -> str:
    command = ["readelf", f"--debug-dump={what}", path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def same(ours: list[tuple[str, int]], theirs: list[str]) -> None:
    assert len(ours) == len(theirs) > 20
    for (name, number), other in zip(ours, theirs, strict=True):
        spellings = {other.lower()}
        spellings |= {one.removesuffix(end) for one in spellings for end in ENDS}
        spellings |= {one.removeprefix(start) for one in spellings for start in STARTS}
        assert name in spellings, f"{number:#x} is {name}, which readelf calls {other}"


def test_tags_attributes_and_forms(tmp_path: Path) -> None:
    tags, attributes, forms = named("TAG_"), named("AT_"), named("FORM_")
    table = b"".join(uleb(k) + uleb(tag) + bytes(3) for k, (_, tag) in enumerate(tags, 1))
    table += uleb(len(tags) + 1) + uleb(1) + b"\0"
    table += b"".join(uleb(number) + uleb(EXPRESSION) for _, number in attributes)
    for _, form in forms:
        table += uleb(NAME) + uleb(form) + (b"\0" if form == IMPLICIT_CONSTANT else b"")
    text = readelf(elf(tmp_path / "table", {".debug_abbrev": table + bytes(3)}), "abbrev")
    same(tags, re.findall(r"DW_TAG_(\w+)", text)[:-1])
    rows = re.findall(r"DW_AT_(\w+) +DW_FORM_(\w+)", text)
    same(attributes, [attribute for attribute, _ in rows[: len(attributes)]])
    same(forms, [form for _, form in rows[len(attributes) :]])


# What DW_OP_* of two operands do (DWARF 5, 2.5.1.4 and 2.5.1.5), as C writes it.
C = {
    "and": "&", "div": "/", "minus": "-", "mod": "%", "mul": "*", "or": "|", "plus": "+",
    "shl": "<<", "shr": ">>", "shra": ">>", "xor": "^", "le": "<=", "ge": ">=", "eq": "==",
    "lt": "<", "gt": ">", "ne": "!=",
}  # fmt: skip
SIGNED = {"div", "shra"}


def operations(numbers: list[int], folder: Path) -> list[str]:
    """Return readelf's names of these operations; "" for one without a name."""
    unit = Unit()
    unit.entry(0x11, [Value(2, EXPRESSION, bytes([16, number]) + bytes(15)) for number in numbers])
    text = readelf(elf(folder / "unit", unit.sections()), "info")
    return re.findall(r"DW_AT_location *:[^(]*\((?:DW_OP_(\w+))?", text)


def test_operations(tmp_path: Path) -> None:
    ours = [one for one in named("OP_", (expressions,)) if one[0] != "constx"]  # readelf has none
    names = {number: name for name, number in ours}
    ours += [(f"gnu_{names[new]}", old) for old, new in expressions.GNU.items()]
    same(ours, operations([number for _, number in ours], tmp_path))


def test_operations_of_two_operands(tmp_path: Path) -> None:
    """A comparison gives a number; signed operations divide and shift as C does."""
    tables = (expressions._UNSIGNED, expressions._SIGNED, expressions._COMPARE)
    names = operations(list(range(256)), tmp_path)
    found = [{names[number]: text for number, text in table.items()} for table in tables]
    compared = {"le", "ge", "eq", "lt", "gt", "ne"}
    for table, those in zip(found, (C.keys() - SIGNED - compared, SIGNED, compared), strict=True):
        assert table == {name: C[name] for name in those}
