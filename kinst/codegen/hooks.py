"""The hooks of kernel functions: the breakpoint handler's, the exception table search's, and the
one that samples CPUs.

The first two look an address up in a hash table in the traps area of scratch.  The area starts with
a directory of two tables, traps and then copies; for each it has the u64 address of the entries,
the u64 number of entries minus one, and a u64 shift.  An entry is (u64 address, u64 value); address
0 marks a free one.  An area of zeros is a valid, empty directory.

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
    """Return the bits of an index of a table of these pairs.  Pairs fill at most half of it, so
    that a search for a missing address ends soon."""
    return max(1, (2 * len(pairs)).bit_length())


def _fill(table: U64, pairs: Pairs, bits: int) -> None:
    """Put pairs into an empty table of 2**bits rows.

    Each pair is in the row of its hash, or in the first free row after it: in the order of their
    hashes, each goes to its own row or to the one after the pair before it, whichever is later."""
    hashes = (pairs.first * np.uint64(GOLDEN) >> np.uint64(64 - bits)).astype(np.int32)
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    steps = np.arange(len(order), dtype=np.int32)
    rows = np.maximum.accumulate(hashes[order] - steps) + steps
    inside = int(np.searchsorted(rows, len(table)))
    table[rows[:inside], 0] = pairs.first[order[:inside]]
    table[rows[:inside], 1] = pairs.second[order[:inside]]
    rest = order[inside:]  # pairs after the last row wrap around to the first free rows
    free = np.flatnonzero(table[:, 0] == 0)[: len(rest)] if len(rest) else rest
    table[free, 0], table[free, 1] = pairs.first[rest], pairs.second[rest]


def build_trap_table(address: int, traps: Pairs, copies: Pairs = NO_PAIRS) -> bytearray:
    """Return the bytes for the start of the traps area.

    Args:
        address: of the area, in the target.
        traps: (address of a trap-planted instruction, its trampoline).
        copies: (address of a displaced copy in a trampoline, address of the original).
    """
    both = (traps, copies)
    bits = [_bits(pairs) for pairs in both]
    area = bytearray(DIRECTORY + sum(_ENTRY << n for n in bits))
    at = DIRECTORY
    for k, (pairs, n) in enumerate(zip(both, bits, strict=True)):
        _TABLE.pack_into(area, k * _TABLE.size, address + at, (1 << n) - 1, 64 - n)
        _fill(np.frombuffer(area, "<u8", 2 << n, at).reshape(-1, 2), pairs, n)
        at += _ENTRY << n
    return area


def _look_up(code: IrFunction, directory: int, key: IrValue, found: str, missing: str) -> IrValue:
    """Go to label `missing`, or to `found` with the entry's address as the result."""
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
    """Write trap_hook(saved registers) -> 1 if the breakpoint is kinst's.  The saved program
    counter is the trampoline's then; otherwise the result is 0, and nothing has changed."""
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
    """Write name(saved registers): run an entry with the registers of an interrupted CPU.  Two
    words after the frame hold the interrupted program counter: the first if it is in the kernel,
    the second if it is in user mode; the other one is 0.

    Args:
        machine: that the code is for.
        name: of the function.
        entry: to run.
        descriptor: address of the probe's descriptor.
    """
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
    pc = code.load(64, code.add(registers, machine.trap_pc_offset))
    in_kernel = code.icmp("slt", pc, 0)
    code.store(code.select(in_kernel, pc, const(0)), code.add(frame, size))
    code.store(code.select(in_kernel, const(0), pc), code.add(frame, size + 8))
    code.call(entry, (const(descriptor), frame))
    code.ret()
    return code


def write_fault_hook(machine: CodeMachine) -> IrFunction:
    """Write fault_hook(address) -> the address, or the original's if it is that of a displaced
    copy."""
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
