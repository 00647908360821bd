"""The hooks that run in the target besides clauses: at the breakpoint handler and at the kernel's
search for exception table entries.

Both look an address up in a hash table in the traps area of scratch. The area starts with a
directory of two tables, traps and then copies; for each it has the u64 address of the entries, the
u64 number of entries minus one, and a u64 shift. An entry is (u64 address, u64 value); address 0
marks a free one. An area of zeros is a valid, empty directory.

Tested by tests/codegen/test_target_code.py.
"""

from __future__ import annotations

import struct

import numpy as np

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.firing import GOLDEN
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.columns import NO_PAIRS, U64, Pairs

_TABLE = struct.Struct("<QQQ")

_ENTRY = 16  # bytes

DIRECTORY = 2 * _TABLE.size

TRAPS, COPIES = 0, _TABLE.size


def _bits(pairs: Pairs) -> int:
    """Bits of an index of their table.  At most half of it is used, so that a search for a missing
    address ends soon."""
    return max(1, (2 * len(pairs)).bit_length())


def _fill(table: U64, pairs: Pairs, bits: int) -> None:
    """Put pairs into an empty table, of as many rows as that many bits can count.

    Each pair is where its hash says or, of several, as near behind as there is room: in the order
    of their hashes, each goes to its own place or behind the one before it, whichever is later."""
    wanted = (pairs.first * np.uint64(GOLDEN) >> np.uint64(64 - bits)).astype(np.int32)
    order = np.argsort(wanted, kind="stable").astype(np.int32)
    steps = np.arange(len(order), dtype=np.int32)
    places = np.maximum.accumulate(wanted[order] - steps) + steps
    inside = int(np.searchsorted(places, len(table)))
    table[places[:inside], 0] = pairs.first[order[:inside]]
    table[places[:inside], 1] = pairs.second[order[:inside]]
    rest = order[inside:]  # what would lie behind the end begins anew, from the start on
    free = np.flatnonzero(table[:, 0] == 0)[: len(rest)] if len(rest) else rest
    table[free, 0], table[free, 1] = pairs.first[rest], pairs.second[rest]


def build_trap_table(address: int, traps: Pairs, copies: Pairs = NO_PAIRS) -> bytearray:
    """The bytes for the start of the traps area, which is at `address` in the target.

    traps: (address of a trap-planted instruction, its trampoline). copies: (address of a displaced
    copy in a trampoline, address of the original instruction).
    """
    both = (traps, copies)
    bits = [_bits(pairs) for pairs in both]
    made = bytearray(DIRECTORY + sum(_ENTRY << n for n in bits))
    at = DIRECTORY
    for k, (pairs, n) in enumerate(zip(both, bits, strict=True)):
        _TABLE.pack_into(made, k * _TABLE.size, address + at, (1 << n) - 1, 64 - n)
        _fill(np.frombuffer(made, "<u8", 2 << n, at).reshape(-1, 2), pairs, n)
        at += _ENTRY << n
    return made


def _look_up(code: IrFunction, directory: int, key: IrValue, found: str, missing: str) -> IrValue:
    """Go to `missing`, or to `found` with the entry's address as the result."""
    table = code.load(64, const(directory))
    mask = code.load(64, const(directory + 8))
    shift = code.load(64, const(directory + 16))
    start = code.op("lshr", code.op("mul", key, GOLDEN), code.op("and", shift, 63))
    at = code.local(64)
    code.set(at, start)
    code.branch(code.icmp("eq", table, 0), missing, "probe")
    code.block("probe")
    index = code.op("and", code.get(at), mask)
    entry = code.op("add", table, code.op("shl", index, 4))
    there = code.load(64, entry)
    code.set(at, code.op("add", index, 1))
    code.branch(code.icmp("eq", there, 0), missing, "used")
    code.block("used")
    code.branch(code.icmp("eq", there, key), found, "probe")
    return entry


def write_trap_hook(machine: CodeMachine) -> IrFunction:
    """trap_hook(saved registers) -> 1 if the breakpoint is kinst's: the saved program counter is
    now the trampoline's. Otherwise 0, and nothing has changed."""
    registers = IrValue(64, "%registers")
    code = IrFunction("trap_hook", (registers,), 64, "ccc", internal=False)
    saved = code.add(registers, machine.trap_pc_offset)
    site = code.op("sub", code.load(64, saved), machine.trap_pc_delta)
    directory = machine.address(machine.scratch.traps + TRAPS)
    entry = _look_up(code, directory, site, "ours", "not_ours")
    code.block("ours")
    code.store(code.load(64, code.add(entry, 8)), saved)
    code.ret(const(1))
    code.block("not_ours")
    code.ret(const(0))
    return code


def write_sampler(
    machine: CodeMachine, name: str, entry: IrFunction, descriptor: int
) -> IrFunction:
    """name(saved registers): run an entry with what the CPU was at. Behind the frame is where that
    was, twice: in the kernel, else 0, and in user mode, else 0.

    descriptor: address of the probe's."""
    registers = IrValue(64, "%registers")
    code = IrFunction(name, (registers,), 0, "ccc", internal=False)
    size = 8 * machine.frame_slots
    frame = code.buffer(size + 16)
    for at in range(0, size, 8):
        code.store(const(0), code.add(frame, at))
    slots = {one.d_name: one.slot for one in machine.registers}
    for register, offset in machine.saved_registers:
        value = code.load(64, code.add(registers, offset))
        code.store(value, code.add(frame, 8 * slots[register]))
    place = code.load(64, code.add(registers, machine.trap_pc_offset))
    inside = code.icmp("slt", place, 0)
    code.store(code.select(inside, place, const(0)), code.add(frame, size))
    code.store(code.select(inside, const(0), place), code.add(frame, size + 8))
    code.call(entry, (const(descriptor), frame))
    code.ret()
    return code


def write_fault_hook(machine: CodeMachine) -> IrFunction:
    """fault_hook(address) -> the address, or for that of a displaced copy the address of the
    original."""
    address = IrValue(64, "%address")
    code = IrFunction("fault_hook", (address,), 64, "ccc", internal=False)
    scratch = machine.scratch
    inside = code.op("sub", address, const(machine.address(scratch.text)))
    ours = code.icmp("ult", inside, scratch.size - scratch.text)
    code.branch(ours, "search", "same", likely=False)
    code.block("search")
    directory = machine.address(scratch.traps + COPIES)
    entry = _look_up(code, directory, address, "found", "same")
    code.block("found")
    code.ret(code.load(64, code.add(entry, 8)))
    code.block("same")
    code.ret(address)
    return code
