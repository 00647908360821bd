"""Counters for the keys of aggregations, which a trampoline can find without a call. A table of
slots, one for all CPUs, says which key has which slot. Each CPU has a counter for each slot; if the
ISA can add atomically, all CPUs share one set of counters.

A slot in the table is a word, 0 while the slot is free. A key's word is the key plus a constant,
and a key's slot is computed from its word.

A clause counts a key in the aggregation's hash table (in an entry function, with interrupts off).
If the key's slot is free, the clause also stores the key's word in the slot, by
compare-and-exchange. A word in a slot never changes. So a trampoline that finds its key's word in
the slot may use the slot's counter, at any time and on any CPU, even if it is interrupted. The
trampoline adds to the counter by one instruction, which finds this CPU's counters by the per-CPU
base.

A key whose slot belongs to another key is counted in the hash table only. The consumer adds a key's
counter and its count in the hash table.

Tested by tests/codegen/actions/test_aggregation_updates.py.
"""

from __future__ import annotations

from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.records import SLOT_BIAS, Field
from kinst.dlang import typed

# Knuth's multiplier for 32 bits, as in Fibonacci hashing.  It fits in one instruction's immediate.
_MULTIPLIER = 0x9E3779B1


def key_word(code: IrFunction, key: IrValue, field: Field) -> IrValue:
    """Emit LLVM IR that computes the word of a key in the slot table; return the word.

    The word of a key of up to four bytes is never 0. One key of eight bytes has the word 0, which
    in the table means a free slot; this key never gets a counter.
    """
    stored = code.convert(key, 8 * field.size, typed.is_signed(field.type))
    return code.add(code.convert(stored, 64, signed=False), SLOT_BIAS)


def slot_offset(code: IrFunction, word: IrValue, slots: int) -> IrValue:
    """Emit LLVM IR that computes the byte offset of a key's slot in the slot table; return the
    offset. The slot's counter has the same offset from the first counter.

    Args:
        word: the key's word (key_word()).
        slots: number of slots, a power of two.
    """
    low = code.convert(word, 32, signed=False)
    mixed = code.op("mul", low, const(_MULTIPLIER, 32))
    slot = code.op("lshr", mixed, 32 - (slots.bit_length() - 1))
    return code.op("shl", code.convert(slot, 64, signed=False), 3)


def counter_of(
    code: IrFunction, key: IrValue, field: Field, slots: int, table: int, counters: int
) -> tuple[IrValue, IrValue]:
    """Emit LLVM IR that looks up the counter of a key; return two values. The first is an i1, 1 if
    the key has a counter. The second says where the counter is: its displacement from the per-CPU
    base or, if all CPUs share the counters, its address.

    Args:
        key: value of the key.
        field: the key's field in an entry of the aggregation.
        slots: number of slots.
        table: address of the slot table.
        counters: displacement (or address) of the first counter.
    """
    word = key_word(code, key, field)
    offset = slot_offset(code, word, slots)
    has_counter = code.icmp("eq", code.load(64, code.add(offset, table)), word)
    if field.size > 4:
        has_counter = code.op("and", has_counter, code.icmp("ne", word, 0))
    return has_counter, code.add(offset, counters)


def claim_slot(code: IrFunction, key: IrValue, field: Field, slots: int, table: int) -> None:
    """Emit LLVM IR that stores a key's word in its slot if the slot is free. Trampolines can then
    count the key by the slot's counter.

    Args:
        key: value of the key.
        field: the key's field in an entry of the aggregation.
        slots: number of slots.
        table: address of the slot table.
    """
    word = key_word(code, key, field)
    place = code.add(slot_offset(code, word, slots), table)
    free, end = code.fresh("free"), code.fresh("claimed")
    code.branch(code.icmp("eq", code.load_atomic(place), 0), free, end, likely=False)
    code.block(free)
    code.exchange_if(place, const(0), word)
    code.jump(end)
    code.block(end)
