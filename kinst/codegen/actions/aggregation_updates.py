"""LLVM IR that updates an aggregation: find the table entry for the keys, then change the entry's
data (core/records.py).
"""

from __future__ import annotations

from kinst.codegen.actions.recording import store_data
from kinst.codegen.firing import GOLDEN, TEMP_KEYS, Firing, Text, Unit
from kinst.codegen.helpers.key_slots import claim_slot
from kinst.codegen.helpers.memory_access import read_bytes
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.layout.aggregation_tables import literal_keys, magnitudes
from kinst.codegen.layout.variable_places import by_address
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.codegen.values.lowering import lower, scalar
from kinst.core.layout import HEADER_HALF, SITE_HEADER, STATE_AGG_DROPS
from kinst.core.records import PROBE_LIMIT, QUANTIZE_ZERO, AggregationLayout
from kinst.dlang import typed


def aggregate(firing: Firing, action: typed.AggregateAction) -> None:
    """Emit LLVM IR that updates an aggregation.

    The emitted code computes keys, value and weight before it changes anything, so a faulting
    expression leaves the aggregation as it was.
    """
    layout = next(a for a in firing.unit.layout.aggregations if a.index == action.aggregation.index)
    code = firing.code
    constant = layout.constant_keys is not None
    keys = [] if constant else [_key(firing, key) for key in action.keys]
    value = weight = const(1)
    if action.value is not None:
        narrow = scalar(firing, action.value)
        value = code.convert(narrow, 64, typed.is_signed(action.value.type))
    if action.weight is not None:
        narrow = scalar(firing, action.weight)
        weight = code.convert(narrow, 64, typed.is_signed(action.weight.type))
    table = _table(firing, layout)
    if constant:
        entry = _constant_entry(firing, action, layout, table)
        fresh = None
        if action.aggregation.function.name in ("min", "max"):
            fresh = code.icmp("eq", code.load(64, entry), 0)
        code.store(const(1), entry)
        _update(firing, action.aggregation.function, code.add(entry, 8), value, weight, fresh)
        return
    _store_keys(firing, layout, keys)
    entry = code.call(
        firing.unit.helper("find_entry", _find_entry),
        (
            table, code.add(firing.temp(), TEMP_KEYS), const((layout.data_offset - 8) // 8),
            const(layout.data_size // 8), const(layout.entry_size), const(layout.capacity - 1),
        ),
    )  # fmt: skip
    _update_found(firing, action, layout, entry, value, weight)
    if layout.slots and not firing.unit.machine.host:
        (key,), (field,) = keys, layout.keys
        assert isinstance(key, IrValue)
        machine = firing.unit.machine
        place = machine.address(machine.scratch.globals + layout.slot_table)
        claim_slot(code, key, field, layout.slots, place)


def _update_found(
    firing: Firing,
    action: typed.AggregateAction,
    layout: AggregationLayout,
    entry: IrValue,
    value: IrValue,
    weight: IrValue,
) -> None:
    """Emit LLVM IR that updates the table entry that find_entry() returned. If find_entry()
    returned 0, the table has no room, and the emitted code counts a drop.

    Args:
        entry: the result of find_entry(): the entry's address, with bit 0 set if the entry is new.
        value: the value to aggregate.
        weight: the value's weight, for distributions.
    """
    code = firing.code
    found, full, end = (code.fresh(n) for n in ("found", "full", "updated"))
    code.branch(code.icmp("ne", entry, 0), found, full, likely=True)
    code.block(full)
    code.increment(firing.field(STATE_AGG_DROPS))
    code.jump(end)
    code.block(found)
    fresh = code.convert(entry, 1, signed=False)
    data = code.add(code.op("and", entry, -2), layout.data_offset)
    _update(firing, action.aggregation.function, data, value, weight, fresh)
    code.jump(end)
    code.block(end)


def _table(firing: Firing, layout: AggregationLayout) -> IrValue:
    """Emit LLVM IR that computes the address of this CPU's table of an aggregation; return the
    address.  Each CPU has two such tables: clauses write one, while the consumer reads the other.
    """
    code = firing.code
    machine = firing.unit.machine
    half = code.load(64, const(machine.address(HEADER_HALF)))
    pair = code.op("add", code.op("shl", firing.slot, 1), half)
    offset = code.op("mul", pair, machine.scratch.agg_size)
    return code.add(offset, machine.address(machine.scratch.aggs + layout.area))


def _constant_entry(
    firing: Firing, action: typed.AggregateAction, layout: AggregationLayout, table: IrValue
) -> IrValue:
    """Emit LLVM IR that computes the address of the table entry that an action updates; return the
    address.

    The aggregation has a table of constant keys. If the action's keys are all literals, the entry's
    index is a constant in the code. Otherwise, a key depends on the probe (probefunc, id and so
    on), and the code loads the index from the site's descriptor.
    """
    code = firing.code
    keys = literal_keys(action.keys)
    assert layout.constant_keys is not None
    if keys is not None:
        # A clause without probes has no entry, and its code never runs.
        entry = layout.constant_keys.index(keys) if keys in layout.constant_keys else 0
        return code.add(table, entry * layout.entry_size)
    place = firing.unit.layout.constant_aggregations.index(layout.index)
    index = code.load(64, code.add(firing.site, SITE_HEADER + 8 * place))
    return code.op("add", table, code.op("mul", index, layout.entry_size))


def _key(firing: Firing, key: typed.Expr) -> IrValue | Text | typed.Expr:
    """Emit LLVM IR that evaluates a key; return its value. For stack(), sym() and the like, emit
    nothing and return the expression: store_data() later emits code that writes its value to
    memory.
    """
    return (
        key if isinstance(key, typed.RecordedStack | typed.RecordedSymbol) else lower(firing, key)
    )


def _store_keys(
    firing: Firing, layout: AggregationLayout, keys: list[IrValue | Text | typed.Expr]
) -> None:
    """Emit LLVM IR that stores the keys in this CPU's working memory, laid out as in a table entry,
    with zeros in the gaps between keys.
    """
    code = firing.code
    room = code.add(firing.temp(), TEMP_KEYS)
    covered = {f.offset + i for f in layout.keys for i in range(f.size)}
    for at in range(8, layout.data_offset, 8):
        if not covered.issuperset(range(at, at + 8)):
            code.store(const(0), code.add(room, at - 8))
    for field, value in zip(layout.keys, keys, strict=True):
        to = code.add(room, field.offset - 8)
        if isinstance(value, typed.Expr):
            store_data(firing, value, to)
        elif isinstance(value, Text):
            copy_text(firing, value, to, field.size, pad=True)
        elif by_address(field.type):
            read_bytes(firing, value, to, field.size)
        else:
            code.store(code.convert(value, 8 * field.size, typed.is_signed(field.type)), to)


def _hash(code: IrFunction, keys: IrValue, size: IrValue) -> IrValue:
    """Emit a loop that hashes `size` bytes of keys, and begin the block "hashed" after the loop.
    Return the hash.
    """
    hash_, at = code.local(64, GOLDEN), code.local(64)
    code.jump("hash")
    code.block("hash")
    here = code.get(at)
    mixed = code.op("xor", code.get(hash_), code.load(64, code.op("add", keys, here)))
    mixed = code.op("mul", mixed, GOLDEN)
    mixed = code.op("xor", mixed, code.op("lshr", mixed, 32))
    code.set(hash_, mixed)
    code.set(at, code.op("add", here, 8))
    code.branch(code.icmp("ult", code.get(at), size), "hash", "hashed")
    code.block("hashed")
    return mixed


def _find_entry(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function find_entry(table, keys, key words, data words, entry size, mask),
    which finds or makes the entry with these keys.

    The function returns the entry's address; plus 1 if the entry is new, with zeros as data. It
    returns 0 if all entries that may hold these keys (at most PROBE_LIMIT) belong to other keys.

    `table` and `keys` are addresses. The keys and the data have `key words` and `data words` words
    of 8 bytes. The entry size is in bytes. `mask` is the table's number of entries minus 1.
    """
    code = unit.function(name, 6)
    table, keys, key_words, data_words, entry_size, mask = code.params
    key_size = code.op("shl", key_words, 3)
    mixed = _hash(code, keys, key_size)
    at, step = code.local(64), code.local(64)
    tag = code.op("or", mixed, 1)
    limit = code.select(
        code.icmp("ult", mask, PROBE_LIMIT - 1), code.op("add", mask, 1), const(PROBE_LIMIT)
    )
    code.jump("probe")
    code.block("probe")
    index = code.op("and", code.op("add", mixed, code.get(step)), mask)
    entry = code.op("add", table, code.op("mul", index, entry_size))
    entry_keys = code.op("add", entry, 8)
    there = code.load(64, entry)
    code.set(at, const(0))
    code.branch(code.icmp("eq", there, tag), "compare", "other")
    code.block("compare")
    here = code.get(at)
    ours = code.load(64, code.op("add", keys, here))
    theirs = code.load(64, code.op("add", entry_keys, here))
    code.set(at, code.op("add", here, 8))
    code.branch(code.icmp("eq", ours, theirs), "equal", "next")
    code.block("equal")
    code.branch(code.icmp("ult", code.get(at), key_size), "compare", "found")
    code.block("found")
    code.ret(entry)
    code.block("other")
    code.branch(code.icmp("eq", there, 0), "copy", "next")
    code.block("next")
    following = code.op("add", code.get(step), 1)
    code.set(step, following)
    code.branch(code.icmp("ult", following, limit), "probe", "full")
    code.block("full")
    code.ret(const(0))
    code.block("copy")
    here = code.get(at)
    word = code.load(64, code.op("add", keys, here))
    code.store(word, code.op("add", entry_keys, here))
    code.set(at, code.op("add", here, 8))
    code.branch(code.icmp("ult", code.get(at), key_size), "copy", "clear")
    code.block("clear")
    here = code.get(at)
    code.store(const(0), code.op("add", entry_keys, here))
    code.set(at, code.op("add", here, 8))
    end = code.op("add", key_size, code.op("shl", data_words, 3))
    code.branch(code.icmp("ult", code.get(at), end), "clear", "insert")
    code.block("insert")
    code.store(tag, entry)
    code.ret(code.op("or", entry, 1))
    return code


def _update(
    firing: Firing,
    function: typed.AggFunction,
    data: IrValue,
    value: IrValue,
    weight: IrValue,
    fresh: IrValue | None,
) -> None:
    """Emit LLVM IR that adds a value to the data of an aggregation's entry.

    Args:
        function: the aggregating function.
        data: address of the entry's data.
        value: the value to aggregate.
        weight: the value's weight, for distributions.
        fresh: an i1, 1 if the entry has no data yet; only min() and max() need it, because they
            cannot start from the zeros of a new entry.  None for other aggregating functions.
    """
    code = firing.code
    second = code.add(data, 8)
    match function.name:
        case "count":
            code.increment(data)
        case "sum":
            code.increment(data, value)
        case "min" | "max":
            assert fresh is not None
            old = code.load(64, data)
            order = "slt" if function.name == "min" else "sgt"
            better = code.op("or", fresh, code.icmp(order, value, old))
            code.store(code.select(better, value, old), data)
        case "avg":
            code.increment(data)
            code.increment(second, value)
        case "stddev":
            code.increment(data)
            code.increment(second, value)
            squares = code.add(data, 16)
            wide = code.convert(value, 128, signed=True)
            total = code.op("add", code.load(128, squares), code.op("mul", wide, wide))
            code.store(total, squares)
        case _:
            bucket = _bucket(code, function, value)
            code.increment(code.op("add", data, code.op("shl", bucket, 3)), weight)


def _bucket(code: IrFunction, function: typed.AggFunction, value: IrValue) -> IrValue:
    if function.name == "quantize":
        return _quantize(code, value)
    if function.name == "lquantize":
        return _lquantize(code, function.params, value)
    return _llquantize(code, function.params, value)


def _quantize(code: IrFunction, value: IrValue) -> IrValue:
    """Emit LLVM IR that computes the bucket of quantize(); return its number.

    If |value| has n bits, the bucket is 63 + n. For a negative value, it is 63 - n, but at least 0:
    -2**63 has 64 bits, and goes to bucket 0 like the values with 63 bits.
    """
    negative = code.icmp("slt", value, 0)
    size = code.select(negative, code.op("sub", const(0), value), value)
    bits = code.op("sub", const(64), code.leading_zeros(size))
    below = code.op("sub", const(QUANTIZE_ZERO), bits)
    below = code.select(code.icmp("slt", below, 0), const(0), below)
    return code.select(negative, below, code.op("add", bits, QUANTIZE_ZERO))


def _lquantize(code: IrFunction, params: tuple[int, ...], value: IrValue) -> IrValue:
    base, limit, step = params
    levels = (limit - base) // step
    # Unsigned: the distance of two i64s, one not below the other, is below 2**64.
    level = code.op("udiv", code.op("sub", value, const(base)), step)
    inside = code.icmp("ult", level, levels)
    level = code.select(inside, code.op("add", level, 1), const(levels + 1))
    return code.select(code.icmp("slt", value, const(base)), const(0), level)


def _llquantize(code: IrFunction, params: tuple[int, ...], value: IrValue) -> IrValue:
    """Emit LLVM IR that computes the bucket of llquantize(); return its number.

    The code has no branches. It computes the bucket for each order of magnitude
    (aggregation_tables.py magnitudes()), from the highest order to the lowest. If the value is
    below the order's end, a select replaces the result by this bucket.
    """
    orders, above = magnitudes(params)
    if not orders:  # the lowest bound is above every 64-bit value
        return const(0)
    result = const(above)
    for order in reversed(orders):
        inside = code.op("udiv", code.op("sub", value, order.low), order.width)
        inside = code.op("add", inside, order.first)
        result = code.select(code.icmp("slt", value, const(order.high)), inside, result)
    return code.select(code.icmp("slt", value, const(orders[0].low)), const(0), result)
