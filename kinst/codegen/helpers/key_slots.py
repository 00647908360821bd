"""Counters of keyed counts that are found without a call: one table for all CPUs says which key
has which slot, and every CPU counts in its own slots (or all in one, if the ISA adds atomically).

The table has a word for each slot, 0 while it is free.  A key's word is the key and a constant; its
slot follows from the word alone.  A clause that counts a key in the usual way, in a frame and with
interrupts off, also puts the key's word into its slot by compare-and-exchange, if the slot is free.
The word never changes after that, so code that finds its key's word there knows the counter, at any
time, on any CPU, interrupted or not.  One instruction changes the counter; it takes this CPU's part
from the per-CPU base.  A key whose slot belongs to another key is counted in the usual way.  The
consumer adds up both.

Tested by tests/codegen/actions/test_aggregation_updates.py.
"""

from __future__ import annotations

from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.records import SLOT_BIAS, Field
from kinst.dlang import typed

# Knuth's multiplier for 32 bits, as in Fibonacci hashing: an immediate of one instruction.
_MULTIPLIER = 0x9E3779B1


def key_word(code: IrFunction, key: IrValue, field: Field) -> IrValue:
    """Return the word of a key, which is never 0 for keys of up to four bytes."""
    stored = code.convert(key, 8 * field.size, typed.is_signed(field.type))
    return code.add(code.convert(stored, 64, signed=False), SLOT_BIAS)


def slot_offset(code: IrFunction, word: IrValue, slots: int) -> IrValue:
    """Return the offset of a word's slot from the table's start, or of its counter from the first
    one.  The number of slots is a power of two."""
    low = code.convert(word, 32, signed=False)
    mixed = code.op("mul", low, const(_MULTIPLIER, 32))
    slot = code.op("lshr", mixed, 32 - (slots.bit_length() - 1))
    return code.op("shl", code.convert(slot, 64, signed=False), 3)


def counter_of(
    code: IrFunction, key: IrValue, field: Field, slots: int, table: int, counters: int
) -> tuple[IrValue, IrValue]:
    """Return whether a key has a counter (an i1), and its offset; `counters` is the offset of the
    first one."""
    word = key_word(code, key, field)
    offset = slot_offset(code, word, slots)
    has_counter = code.icmp("eq", code.load(64, code.add(offset, table)), word)
    if field.size > 4:
        has_counter = code.op("and", has_counter, code.icmp("ne", word, 0))
    return has_counter, code.add(offset, counters)


def claim_slot(code: IrFunction, key: IrValue, field: Field, slots: int, table: int) -> None:
    """Put a key's word into its slot, if that is free."""
    word = key_word(code, key, field)
    place = code.add(slot_offset(code, word, slots), table)
    free, end = code.fresh("free"), code.fresh("claimed")
    code.branch(code.icmp("eq", code.load_atomic(place), 0), free, end, likely=False)
    code.block(free)
    code.exchange_if(place, const(0), word)
    code.jump(end)
    code.block(end)
