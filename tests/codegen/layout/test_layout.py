"""Offsets and sizes of data: as C lays them out, and as the consumer reads them."""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
from typing import Any

import pytest

from kinst.codegen import hooks
from kinst.codegen.layout.aggregation_tables import data_words, literal_keys
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.codegen.layout.variable_places import (
    bits_of,
    dynamic_size,
    lay_out_values,
    place_variables,
    size_of,
)
from kinst.codegen.site_records import _field
from kinst.consumer.aggregations import llquantize_bounds
from kinst.consumer.values import bucket_bounds
from kinst.core import dtypes
from kinst.core.columns import Pairs
from kinst.core.dtypes import (
    ArrayType,
    DType,
    FloatType,
    FunctionType,
    IntType,
    StackType,
    StringType,
    SymbolType,
)
from kinst.core.errors import KinstError, Span
from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_SLOT
from kinst.core.probe import Argument
from kinst.core.records import Field
from kinst.dlang import typed
from kinst.dlang.api import compile_text
from kinst.dlang.typed import AggFunction
from kinst.isa import load

SPAN = Span("t.d", 1, 1)
C: list[tuple[IntType, Any]] = [
    (dtypes.INT8, ctypes.c_int8), (dtypes.UINT8, ctypes.c_uint8),
    (dtypes.SHORT, ctypes.c_int16), (dtypes.USHORT, ctypes.c_uint16),
    (dtypes.INT, ctypes.c_int32), (dtypes.UINT, ctypes.c_uint32),
    (dtypes.INT64, ctypes.c_int64), (dtypes.UINT64, ctypes.c_uint64),
]  # fmt: skip
NUMBERS = (0, 1, -1, 127, 128, 255, 256, 300, -129, 2**15, 2**31, 2**32 - 1, 2**63 - 1, -(2**63))


def test_fields_lie_as_those_of_a_c_structure() -> None:
    """The header before them is a multiple of 8; strings are arrays of char."""
    draw = random.Random(1)
    for _ in range(50):
        chosen: list[tuple[DType, Any]] = []
        for _ in range(draw.randrange(1, 7)):
            size = draw.randrange(1, 20)
            string: tuple[DType, Any] = (StringType(size), ctypes.c_char * size)
            chosen.append(draw.choice([*C, string]))
        fields = [(f"m{n}", c) for n, (_, c) in enumerate(chosen)]
        made = type("Made", (ctypes.Structure,), {"_fields_": fields})
        found, end = lay_out_values([type_ for type_, _ in chosen], 24, 256)
        for name, field in zip((name for name, _ in fields), found, strict=True):
            there = getattr(made, name)
            assert (field.offset - 24, field.size) == (there.offset, there.size)
        assert end - 24 == there.offset + there.size


@pytest.mark.parametrize(
    "type_",
    [StackType(3), StackType(3, user=True), SymbolType("sym"), SymbolType("usym"),
     ArrayType(dtypes.CHAR, 3), FloatType(4, "float")],
    ids=str,
)  # fmt: skip
def test_what_consists_of_words_begins_on_a_multiple_of_8(type_: DType) -> None:
    for before in range(1, 18):
        first, field = lay_out_values([StringType(before), type_], 24, 256)[0]
        assert first.size == before and field.offset % 8 == 0
        assert 0 <= field.offset - 24 - before < 8


@pytest.mark.parametrize(("type_", "c"), C, ids=str)
def test_constant_keys_are_numbers_of_their_type(type_: IntType, c: Any) -> None:
    for number in NUMBERS:
        plain = typed.IntConst(type_, SPAN, number)
        wide = typed.IntConst(dtypes.INT64, SPAN, number)
        minus = typed.Unary(type_, SPAN, "-", plain)
        keys = literal_keys([plain, typed.Cast(type_, SPAN, wide), minus])
        assert keys == (c(number).value, c(number).value, c(-c(number).value).value), number
    not_known = typed.Builtin(dtypes.INT, SPAN, "pid")
    assert literal_keys([typed.IntConst(type_, SPAN, 1), not_known]) is None
    name = typed.StrConst(StringType(4), SPAN, b"abc")
    assert literal_keys([name]) == (b"abc",)


@pytest.mark.parametrize("text", ["self->x = 1;", "self->x = 1; a[1] = 2;",
    'a[1] = 2; b["key", 3] = "text"; self->y = "text"; c[1, 2, 3] = 4; d[1] = (char)2;',
])  # fmt: skip
def test_dynamic_variables_have_room(text: str) -> None:
    """There is as much room as requested, or otherwise room for a bucket of each."""
    program = compile_text(f"kinst::f:0 {{ {text} }}", "test")[1]
    ends = []
    for asked in (0, 1, 64, 1000, 4096, 100_000):
        size = dynamic_size(program, 64, asked)
        tables = lay_out_program(program, [], 64, 4096, asked).dynamic
        assert all(table.buckets >= 1 for table in tables)
        for table in tables:  # they are whole words, and no more of them than is needed
            end = table.value.offset + table.value.size
            assert table.entry_size % 8 == 0 and 0 <= table.entry_size - end < 8
        ends.append(max(table.area + table.buckets * table.stride for table in tables))
        assert size == max(asked, ends[-1]) and ends[-1] <= max(asked, ends[0])
        places = sorted((one.area, one.area + one.buckets * one.stride) for one in tables)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


def test_strings_and_arrays_begin_on_a_multiple_of_8() -> None:
    """They begin on a multiple of 8 after one byte and after two: they are copied by words."""
    text = "char a; string s; char b, c; int d[3]; char e; string f[2]; kinst::f:0 { trace(1); }"
    program = compile_text(text, "test")[1]
    offsets = place_variables(program, 10).offsets
    places = {v.name: offsets[v.index] for v in program.variables}
    assert [places[name] % 8 for name in "sdf"] == [0, 0, 0]


def test_what_has_no_width() -> None:
    for type_ in (StringType(8), dtypes.VOID, ArrayType(dtypes.INT, 4)):
        with pytest.raises(KinstError, match="cannot compute with values of type"):
            bits_of(type_)
    for other in (dtypes.VOID, FunctionType(dtypes.INT, ())):
        with pytest.raises(KinstError, match="cannot be recorded"):
            size_of(other, 64)


def test_distributions_have_as_many_buckets_as_are_shown() -> None:
    """The Dynamic Tracing Guide, "Aggregations": one bucket below, one above, and the steps
    between."""
    assert data_words(AggFunction("quantize")) == 127  # 63 powers both ways, and 0
    for base, limit, step, count in ((0, 10, 1, 12), (0, 10, 3, 5), (-10, 20, 15, 4), (5, 6, 1, 3)):
        function = AggFunction("lquantize", (base, limit, step))
        assert data_words(function) == count
        assert len(bucket_bounds(function, count)) == count
    for wrong in ((0, 10, 0), (0, 10, -1), (10, 10, 1), (11, 10, 1)):
        with pytest.raises(KinstError):
            data_words(AggFunction("lquantize", wrong))
    ranges = ((2, 3, 10), (0, 1, 3), (0, 1, 4), (1, 2, 4, 5, 10))
    for factor, low, more, times in itertools.product(*ranges):
        power, steps = factor, factor * times
        while power < steps:
            power *= factor
        if power % steps:
            continue  # refused: steps divide a power of the factor
        function = AggFunction("llquantize", (factor, low, low + more, steps))
        # Values below the first bound have a bucket too.
        assert data_words(function) == len(llquantize_bounds(function)) + 1, function


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (5, 3), (64, 100)])
def test_a_trap_table_is_as_long_as_its_directory_says(counts: tuple[int, int]) -> None:
    """The directory has two entries, each (address, entries - 1, shift), followed by the tables,
    at most half full."""
    draw = random.Random(1)
    area = 0xFFFFFFFF_A0000000
    given = [[(draw.getrandbits(63) | 1, draw.getrandbits(64)) for _ in range(n)] for n in counts]
    made = hooks.build_trap_table(area, *(Pairs.of(pairs) for pairs in given))
    end = 48
    for which, pairs in enumerate(given):
        address, last, shift = struct.unpack_from("<QQQ", made, 24 * which)
        assert address == area + end and last + 1 == 1 << 64 - shift and last + 1 >= 2 * len(pairs)
        entries = list(struct.iter_unpack("<QQ", made[end : end + 16 * (last + 1)]))
        assert sorted(entry for entry in entries if entry[0]) == sorted(pairs)
        end += 16 * (last + 1)
    assert len(made) == end


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_what_has_no_room_at_the_end_of_a_table_begins_it(count: int) -> None:
    """Searches begin at one of the last two entries of a table.

    Each search continues from the end to the start, and reaches its own entry before any free one.
    """
    draw, area, size = random.Random(count), 0xFFFFFFFF_A0000000, 2
    while size <= 2 * count:
        size *= 2
    pairs = list[tuple[int, int]]()
    while len(pairs) < count:
        address = draw.getrandbits(63) | 1
        if (address * 0x9E3779B97F4A7C15 & (1 << 64) - 1) * size >> 64 >= size - 2:
            pairs.append((address, draw.getrandbits(64)))
    made = hooks.build_trap_table(area, Pairs.of(pairs))
    address, last, shift = struct.unpack_from("<QQQ", made)
    assert last + 1 == size
    entries = list(struct.iter_unpack("<QQ", made[address - area : address - area + 16 * size]))
    for pair in pairs:
        at = (pair[0] * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> shift
        while entries[at][0] not in (0, pair[0]):
            at = (at + 1) % size
        assert entries[at] == pair


def test_arguments_in_registers_are_recorded_in_line() -> None:
    isa: Any = load("amd64")
    machine: Any = None
    slot = min(isa.snippets.names)
    arguments = [Argument(ARGUMENT_CONSTANT, 7), Argument(ARGUMENT_SLOT, slot)]
    field = Field(24, 8, dtypes.INT64)

    def recorded(name: str) -> Any:
        value = typed.Builtin(dtypes.INT64, SPAN, name)
        return _field(value, field, arguments, machine, isa)

    constant = recorded("arg0")
    assert (constant.kind, constant.value, constant.offset) == ("constant", 7, 24)
    assert (recorded("arg1").kind, recorded("arg1").value) == ("register", slot)
    assert recorded("arg2") is recorded("argX") is recorded("vtimestamp") is None
    assert (recorded("timestamp").kind, recorded("cpu").kind) == ("time", "cpu")
