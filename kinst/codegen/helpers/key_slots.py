"""Counters of keyed counts that are found without a call: one table for all CPUs says which key
has which slot, and every CPU counts in its own slots (or all in one, where the ISA adds
atomically).

The table has a word for each slot, 0 while it is free.  A key's word is the key and a constant;
its slot follows from the word alone.  A clause that counts a key in the usual way, in a frame and
with interrupts off, also puts its word into its slot by compare-and-exchange, if that is free.
From then on the word is never changed, so whoever finds its own word there, at any time, on any
CPU, interrupted or not, knows the counter; and the counter is changed by one instruction that
takes this CPU's place from the per-CPU base.  A key whose slot belongs to another one goes on
being counted in the usual way.  The consumer adds the two up.

Tested by tests/codegen/actions/test_aggregation_updates.py.
"""

from __future__ import annotations

from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.records import SLOT_BIAS, Field
from kinst.dlang import typed

# Knuth's multiplier for 32 bits, as in Fibonacci hashing: an immediate of one instruction.
_MULTIPLIER = 0x9E3779B1


def key_word(code: IrFunction, key: IrValue, field: Field) -> IrValue:
    """The word of a key.  0 is no key's where keys have up to four bytes."""
    stored = code.convert(key, 8 * field.size, typed.is_signed(field.type))
    return code.add(code.convert(stored, 64, signed=False), SLOT_BIAS)


def slot_offset(code: IrFunction, word: IrValue, slots: int) -> IrValue:
    """Bytes from the table's start, or from the first counter, to a word's slot.

    slots: a power of two."""
    low = code.convert(word, 32, signed=False)
    mixed = code.op("mul", low, const(_MULTIPLIER, 32))
    slot = code.op("lshr", mixed, 32 - (slots.bit_length() - 1))
    return code.op("shl", code.convert(slot, 64, signed=False), 3)


def counter_of(
    code: IrFunction, key: IrValue, field: Field, slots: int, table: int, counters: int
) -> tuple[IrValue, IrValue]:
    """Whether a key has a counter (an i1), and where: `counters` is the first one's place."""
    word = key_word(code, key, field)
    offset = slot_offset(code, word, slots)
    found = code.icmp("eq", code.load(64, code.add(offset, table)), word)
    if field.size > 4:
        found = code.op("and", found, code.icmp("ne", word, 0))
    return found, code.add(offset, counters)


def claim_slot(code: IrFunction, key: IrValue, field: Field, slots: int, table: int) -> None:
    """Give a key its slot, if that is free."""
    word = key_word(code, key, field)
    place = code.add(slot_offset(code, word, slots), table)
    free, end = code.fresh("free"), code.fresh("claimed")
    code.branch(code.icmp("eq", code.load_atomic(place), 0), free, end, likely=False)
    code.block(free)
    code.exchange_if(place, const(0), word)
    code.jump(end)
    code.block(end)
