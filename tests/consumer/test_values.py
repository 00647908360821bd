"""Recorded bytes as Python values: values that C's own layout (ctypes, struct) puts in come
out."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from kinst.consumer.aggregations import Entry, KeyedTable
from kinst.consumer.symbols import FrameFinder, Names, ResolvedSymbol
from kinst.consumer.values import aggregation_of, bucket_bounds, plain, size_of
from kinst.core import dtypes
from kinst.core.dtypes import (
    ArrayType,
    DType,
    FloatType,
    IntType,
    Member,
    PointerType,
    StackType,
    StringType,
    StructType,
    SymbolType,
)
from kinst.core.records import Field
from kinst.dlang.typed import (
    AggFunction,
    Measure,
    PerformAction,
    PrintAction,
    PrintfAction,
    TraceAction,
)
from kinst.dlang.vocabulary.d_options import Options
from kinst.events import Batch, Bucket, Frame, Record, Stack
from tests.consumer.world import (
    SPAN,
    World,
    aggregation,
    chunk,
    const,
    fields,
    format_,
    part,
    record,
    table_layout,
)

UCHAR = IntType(1, False, "unsigned char")


@dataclass(frozen=True)
class Members:
    """A source of members that knows those of one structure."""

    known: tuple[Member, ...]

    def members(self, struct: StructType) -> tuple[Member, ...]:
        return self.known


def structure(size: int, *members: Member, kind: str = "struct") -> StructType:
    return StructType(kind, "s", size, "s", Members(members))


@pytest.mark.parametrize(
    ("type_", "letter", "values"),
    [
        (dtypes.INT8, "b", (0, 1, 127, -128, -1)),
        (UCHAR, "B", (0, 255)),
        (dtypes.SHORT, "h", (-(2**15), 2**15 - 1)),
        (dtypes.USHORT, "H", (2**16 - 1, 258)),
        (dtypes.INT, "i", (-(2**31), -2, 2**31 - 1)),
        (dtypes.UINT, "I", (2**32 - 1,)),
        (dtypes.LONG, "q", (-(2**63), 2**63 - 1)),
        (dtypes.ULONG, "Q", (2**64 - 1,)),
        (PointerType(dtypes.INT), "Q", (0xFFFF888003A2B000,)),
        (FloatType(4, "float"), "f", (1.5, -0.25)),
        (FloatType(8, "double"), "d", (1.1, -1e300)),
    ],
)
def test_numbers(type_: DType, letter: str, values: tuple[float, ...]) -> None:
    for value in values:
        data = struct.pack(f"<{letter}", value)
        assert plain(data, type_) == value
        assert plain(data + b"\xff\xff", type_) == value  # the bytes after it are not part of it
    assert size_of(type_) == struct.calcsize(f"<{letter}")


def test_what_has_no_meaning_stays_bytes() -> None:
    assert plain(b"0123456789", FloatType(10, "long double")) == b"0123456789"
    assert plain(b"abc", FloatType(4, "float")) == b"abc"
    assert plain(b"abc", dtypes.VOID) == b"abc"
    assert size_of(dtypes.VOID) == 0


def test_strings_end_at_their_nul() -> None:
    assert plain(b"ab\0cd", StringType(5)) == "ab"
    assert plain(b"abcde", StringType(5)) == "abcde"
    assert plain(b"\xffx\0", StringType(3)) == "\udcffx"
    assert plain(b"ab\0cd", ArrayType(dtypes.CHAR, 5)) == "ab"
    assert plain(b"abcdef", ArrayType(dtypes.CHAR, 4)) == "abcd"
    assert plain(b"abcdef\0x", ArrayType(dtypes.CHAR, 0)) == "abcdef"


def test_arrays() -> None:
    data = struct.pack("<6h", 1, -2, 3, -4, 5, -6)
    assert plain(data, ArrayType(dtypes.SHORT, 6)) == [1, -2, 3, -4, 5, -6]
    assert plain(data, ArrayType(dtypes.SHORT, 2)) == [1, -2]
    assert plain(data + b"\x01", ArrayType(dtypes.SHORT, 0)) == [1, -2, 3, -4, 5, -6]
    rows = ArrayType(ArrayType(dtypes.SHORT, 2), 3)
    assert plain(data, rows) == [[1, -2], [3, -4], [5, -6]]
    assert size_of(rows) == 12
    assert plain(data, ArrayType(dtypes.VOID, 3)) == data


class Inner(ctypes.LittleEndianStructure):
    _fields_ = (("x", ctypes.c_int16), ("y", ctypes.c_uint8))


class Made(ctypes.LittleEndianStructure):
    """A structure with bit-fields as GCC places them."""

    _fields_ = (
        ("first", ctypes.c_uint8),
        ("low", ctypes.c_int32, 3),
        ("high", ctypes.c_uint32, 7),
        ("wide", ctypes.c_int32, 21),
        ("inner", Inner),
        ("name", ctypes.c_char * 6),
        ("many", ctypes.c_uint16 * 3),
        ("last", ctypes.c_int64),
    )


def bit_of(name: str) -> tuple[int, int]:
    """Return the first bit of a member, and its width if it is a bit-field, as ctypes has placed
    it."""
    place = getattr(Made, name)
    if place.size >> 16:
        return place.offset * 8 + (place.size & 0xFFFF), place.size >> 16
    return place.offset * 8, 0


INNER = structure(
    4,
    Member("x", dtypes.SHORT, 8 * Inner.x.offset),
    Member("y", UCHAR, 8 * Inner.y.offset),
)
TYPES = {
    "first": UCHAR, "low": dtypes.INT, "high": dtypes.UINT, "wide": dtypes.INT, "inner": INNER,
    "name": ArrayType(dtypes.CHAR, 6), "many": ArrayType(dtypes.USHORT, 3), "last": dtypes.LONG,
}  # fmt: skip


@given(st.binary(min_size=ctypes.sizeof(Made), max_size=ctypes.sizeof(Made)))
def test_structures_are_those_of_c(data: bytes) -> None:
    members = (Member(name, type_, *bit_of(name)) for name, type_ in TYPES.items())
    c = Made.from_buffer_copy(data)
    assert plain(data, structure(ctypes.sizeof(Made), *members)) == {
        "first": c.first, "low": c.low, "high": c.high, "wide": c.wide,
        "inner": {"x": c.inner.x, "y": c.inner.y},
        "name": c.name.decode("utf-8", "surrogateescape"), "many": list(c.many), "last": c.last,
    }  # fmt: skip


def test_members_of_anonymous_members() -> None:
    """Members of an anonymous union are the structure's own; unnamed padding is no member."""
    union = structure(4, Member("a", dtypes.UINT, 0), Member("b", dtypes.USHORT, 0), kind="union")
    outer = structure(
        12,
        Member("head", dtypes.UINT, 0),
        Member("", union, 32),
        Member("", dtypes.UINT, 64, 5),
        Member("flag", dtypes.UINT, 69, 1),
    )
    data = struct.pack("<III", 7, 0x00030004, 1 << 5)
    assert plain(data, outer) == {"head": 7, "a": 0x30004, "b": 4, "flag": 1}


# --- Distributions --------------------------------------------------------------------------


@given(st.integers(-(2**63), 2**63 - 1))
@example(2**63 - 1)
@example(2**62)
@example(2**62 - 1)
@example(0)
@example(-(2**63))
@example(1 - 2**62)
def test_quantize_buckets(value: int) -> None:
    """The bucket of a power of two has values at least as far from 0, and less than twice as
    far."""
    (bucket,) = (
        (low, high)
        for low, high in bucket_bounds(AggFunction("quantize"), 127)
        if (low is None or low <= value) and (high is None or value < high)
    )
    power = 1 << max(abs(value).bit_length() - 1, 0)
    if value == 0:
        assert bucket == (0, 1)
    elif value > 0:
        assert bucket == (power, 2 * power if power < 2**62 else None)
    else:
        assert bucket == (1 - 2 * power if power < 2**62 else None, 1 - min(power, 2**62))


def test_linear_buckets() -> None:
    found = bucket_bounds(AggFunction("lquantize", (-10, 20, 15)), 4)
    assert found == [(None, -10), (-10, 5), (5, 20), (20, None)]
    found = bucket_bounds(AggFunction("lquantize", (1, 3)), 4)
    assert found == [(None, 1), (1, 2), (2, 3), (3, None)]
    found = bucket_bounds(AggFunction("llquantize", (10, 0, 1, 2)), 5)
    assert found[0] == (None, 1)
    assert [low for low, _ in found[1:]] == [high for _, high in found[:-1]]
    assert found[-1][1] is None


def table(function: AggFunction, keys: tuple[DType, ...] = (), size: int = 8) -> KeyedTable:
    agg = aggregation(0, function.name, keys, function.params, "name")
    rows, at = [], 8
    for type_ in keys:
        rows.append(Field(at, size_of(type_) or 8, type_))
        at += rows[-1].size
    return KeyedTable(agg, table_layout(agg, 0, size, rows), tuple(rows))


def test_an_aggregation() -> None:
    made = table(AggFunction("sum"), (dtypes.INT, StringType(8)))
    for key, value in (((-1, b"b"), 205), ((3, b"a"), -109), ((2, b"\xff"), 30)):
        made.entries[key] = Entry(np.array([value], np.int64), normal=10)
    found = aggregation_of(made, Options(), Names())
    assert (found.name, found.function, found.keys) == ("name", "sum", ("int", "string"))
    assert list(found.rows.items()) == [((3, "a"), -10), ((2, "\udcff"), 3), ((-1, "b"), 20)]


def test_values_of_several_divisors_have_no_unit() -> None:
    made = table(AggFunction("sum"), (dtypes.INT,))
    timed = replace(made.aggregation, measure=Measure("timestamp", "ns"))
    made = replace(made, aggregation=timed)
    made.entries[(1,)] = Entry(np.array([5000], np.int64), normal=1000)
    assert aggregation_of(made, Options(), Names()).unit == "us"
    made.entries[(2,)] = Entry(np.array([7], np.int64))
    found = aggregation_of(made, Options(), Names())
    assert (found.unit, found.rows) == ("", {(1,): 5, (2,): 7})


def test_a_key_that_is_a_structure_is_its_bytes() -> None:
    made = table(AggFunction("count"), (dtypes.INT, structure(8)))
    made.entries[(-1, b"12345678")] = Entry(np.array([3], np.int64))
    assert aggregation_of(made, Options(), Names()).rows == {(-1, b"12345678"): 3}


def test_a_distribution() -> None:
    made = table(AggFunction("lquantize", (0, 20, 10)), size=32)
    made.entries[()] = Entry(np.array([0, 4, 0, 9], np.int64), normal=2)
    assert aggregation_of(made, Options(), Names()).rows == {
        (): (Bucket(0, 10, 2), Bucket(20, None, 4))
    }


def test_no_bucket_begins_where_no_number_is() -> None:
    """llquantize(x, 2, 61, 63, 2): no signed number of 64 bits is 2**63 or above, so the bucket
    from 2**62 on is the last."""
    made = table(AggFunction("llquantize", (2, 61, 63, 2)), size=24)
    made.entries[()] = Entry(np.array([1, 2, 3], np.int64))
    assert aggregation_of(made, Options(), Names()).rows == {
        (): (Bucket(None, 1 << 61, 1), Bucket(1 << 61, 1 << 62, 2), Bucket(1 << 62, None, 3))
    }


# --- Records --------------------------------------------------------------------------------


def names() -> Names:
    return Names(
        lambda address: (
            ResolvedSymbol("vmlinux", "f", 0x1000) if 0x1000 <= address < 0x1100 else None
        ),
        lambda process, address: ResolvedSymbol(process.program, "main", 0x500, 0x400),
    )


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def user(pid: int, program: bytes, *addresses: int) -> bytes:
    return words(pid, 0x400) + program.ljust(32, b"\0") + words(*addresses)


def records_of(world: World, *data: bytes) -> list[Record]:
    events = list(world.interpreter.take([chunk(*data)]))
    return [one for event in events if isinstance(event, Batch) for one in event]


def test_values_of_records() -> None:
    """Values are in the order of the actions, by name, each by its type."""
    pair = structure(4, Member("x", dtypes.SHORT, 0), Member("y", dtypes.SHORT, 16))
    raw = IntType(4, False, "raw bytes")
    made, size = fields(dtypes.LONG, dtypes.UINT, (StringType(8), 8), (raw, 4), (pair, 4))
    actions = [
        TraceAction(SPAN, const(), ("a",)),
        PrintfAction(SPAN, format_(part("", "u"), part("", "s")), (const(), const()), ("b", "c")),
        PrintAction(SPAN, const(0, pair), ("d",)),
        TraceAction(SPAN, const(0, pair)),
    ]
    world = World([(actions, [made[:1], made[1:3], made[3:4], made[4:]], size)])
    payload = struct.pack("<qI8shhhh", -5, 2**32 - 1, b"text\0\xaa\xaa\xaa", -1, 2, 3, -4)
    rows = records_of(
        world, record(0, payload, probe=12, cpu=3, time=99), record(0, payload, probe=1, time=100)
    )
    first, second = rows
    assert (first.probe.id, first.cpu, first.time_ns, first.clause) == (12, 3, 99, 0)
    assert (second.probe.id, second.cpu, second.time_ns) == (1, 0, 100)
    assert [(v.name, v.value) for v in first.values] == [
        ("a", -5), ("b", 2**32 - 1), ("c", "text"), ("d", {"x": -1, "y": 2}),
        ("", {"x": 3, "y": -4}),
    ]  # fmt: skip
    assert [v.type for v in first.values[:2]] == ["long", "unsigned int"]


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [(2, b"ab"), (0, b""), (6, b"abcdef"), (9, b"abcdef"), (-1, b"abcdef")],
)
def test_dumped_memory(recorded: int, expected: bytes) -> None:
    """tracemem() shows as many bytes as its third argument says; a negative one shows none."""
    made, size = fields((UCHAR, 6), dtypes.INT)
    both = (Field(made[0].offset, 6, UCHAR), made[1])
    action = PerformAction(SPAN, "tracemem", (const(), const()), None, ("m",))
    at = made[1].offset - made[0].offset
    payload = b"abcdef".ljust(at, b"\xaa") + struct.pack("<i", recorded)
    for count, wanted in ((2, expected), (1, b"abcdef")):
        world = World([([action], [both[:count]], size)])
        (row,) = records_of(world, record(0, payload))
        assert [(v.name, v.value) for v in row.values] == [("m", wanted)]


def test_stacks_and_names() -> None:
    kernel, process = StackType(3), StackType(2, True)
    symbol, of_user = SymbolType("func"), SymbolType("ufunc")
    found = FrameFinder(names())
    stack = found.stack(words(0x1010, 0x1100, 0), kernel)
    assert stack == Stack(
        "kernel",
        # A return address after the end of f belongs to the call, which is in f.
        (Frame(0x1010, "vmlinux", "f", 0x10), Frame(0x1100, "vmlinux", "f", 0x100)),
    )
    assert found.stack(words(0x1100, 0x1020, 0x2000), kernel).frames == (
        Frame(0x1100), Frame(0x1020, "vmlinux", "f", 0x20), Frame(0x2000),
    )  # fmt: skip
    data = user(42, b"a.out\0junk", 0x510, 0)
    assert found.stack(data, process) == Stack("user", (Frame(0x510, "a.out", "main", 0x10),), 42)
    # Code before f is unknown.
    assert found.stack(words(0x2000, 0x1000, 0), kernel).frames[1:] == (
        Frame(0x1000, "vmlinux", "f", 0),
    )
    assert found.symbol(words(0x1004), symbol) == Frame(0x1004, "vmlinux", "f", 4)
    assert found.symbol(user(1, b"sh", 0x507), of_user) == Frame(0x507, "sh", "main", 7)
    # Code of which only the module is known is in no function.
    module = FrameFinder(Names(lambda address: ResolvedSymbol("ext4", "", 0)))
    assert module.symbol(words(0x1004), symbol) == Frame(0x1004, "ext4", "", 0)
    nobody = FrameFinder(Names())
    assert nobody.symbol(words(0x1004), symbol) == Frame(0x1004)
    assert nobody.symbol(user(1, b"sh", 0x507), of_user) == Frame(0x507)
    assert nobody.stack(data, process) == Stack("user", (Frame(0x510),), 42)


@pytest.mark.parametrize(
    ("kind", "counted"),
    [("sym", 0x1000), ("func", 0x1000), ("mod", 0x900), ("uaddr", 0x1044), ("ufunc", 0x500),
     ("umod", 0x400)],
)  # fmt: skip
def test_what_is_shown_as_one_counts_as_one(kind: str, counted: int) -> None:
    """Functions are equal by their start, modules by their base, other addresses by themselves."""
    found = Names(
        lambda address: ResolvedSymbol("vmlinux", "f", 0x1000, 0x900) if address < 0x1100 else None,
        lambda process, address: ResolvedSymbol(process.program, "main", 0x500, 0x400),
    )
    head = user(42, b"a.out") if kind[0] == "u" else b""
    assert found.merged(head + words(0x1044), SymbolType(kind)) == head + words(counted)
    assert found.merged(words(0x2000), SymbolType("mod")) == words(0x2000)  # an unknown one
    assert found.merged(words(7), dtypes.LONG) == words(7)


def test_an_array_of_what_has_no_size_stays_bytes() -> None:
    assert plain(b"\0" * 4, ArrayType(dtypes.VOID, 0)) == b"\0" * 4


def test_a_caller_is_looked_up_where_it_calls() -> None:
    """A return address is after the call, perhaps in another line, copy or function.

    The byte before it is looked up; for a traced instruction the address itself.
    """
    asked: list[tuple[str, int]] = []

    def place(module: str, at: int) -> None:
        asked.append(("place", at))

    def copies(at: int) -> tuple[str, ...]:
        asked.append(("copies", at))
        return ()

    made = Names(
        lambda address: ResolvedSymbol("vmlinux", "f", 0x1000),
        names().user,
        source_line=place,
        copies=copies,
    )
    frames = FrameFinder(made).stack(words(0x1010, 0x1020, 0), StackType(3)).frames
    assert [one.address for one in frames] == [0x1010, 0x1020]
    assert asked == [("place", 0x1010), ("copies", 0x1010), ("place", 0x101F), ("copies", 0x101F)]
    asked.clear()
    assert FrameFinder(made).symbol(words(0x1010), SymbolType("sym")).address == 0x1010
    assert asked == [("place", 0x1010), ("copies", 0x1010)]


def test_a_key_that_is_an_address_has_its_name() -> None:
    made = table(AggFunction("count"), (SymbolType("func"),))
    made.entries[(words(0x1004),)] = Entry(np.array([3], np.int64))
    for source in (names(), FrameFinder(names())):
        rows = aggregation_of(made, Options(), source).rows
        assert rows == {(Frame(0x1004, "vmlinux", "f", 4),): 3}
