"""LLVM IR of the functions that the kernel calls through hooks: in its breakpoint handler, in its
exception table search, and in the interrupt that samples CPUs.

The first two functions look an address up in a hash table in the traps area of scratch.  The
breakpoint handler's function uses the table of traps, the exception table search's function the
table of copies:

* The table of traps maps the address of each trap-planted instruction to its trampoline.
* The table of copies maps the address of each displaced instruction to the original instruction.

The area starts with a directory of the two tables, traps first.  For each table it has three u64:
the address of the entries, the number of entries minus one, and a shift.  An entry is (u64 address,
u64 value); address 0 marks a free entry.  An area of zeros is a valid directory of empty tables.

Tested by tests/codegen/test_target_code.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.firing import GOLDEN
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.columns import NO_PAIRS, U64, Pairs
from kinst.core.layout import POINTED_SHIFT, POINTED_SLOT
from kinst.core.probe import Argument, Selection

_TABLE = struct.Struct("<QQQ")

_ENTRY = 16  # bytes

DIRECTORY = 2 * _TABLE.size

TRAPS, COPIES = 0, _TABLE.size


def _bits(pairs: Pairs) -> int:
    """Return the size of a hash table for these pairs, as the binary logarithm of the number of
    entries.  The table has at least two entries for each pair, so that a search for a missing
    address ends soon.
    """
    return max(1, (2 * len(pairs)).bit_length())


def _fill(table: U64, pairs: Pairs, bits: int) -> None:
    """Store pairs in an empty hash table of 2**bits entries.

    Each pair goes to the entry of its hash or, if this entry is taken, to the first free entry
    after it (linear probing).
    """
    # In the order of their hashes, each pair goes to the later of two entries: the entry of its
    # hash, and the entry after the previous pair's.
    hashes = (pairs.first * np.uint64(GOLDEN) >> np.uint64(64 - bits)).astype(np.int32)
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    steps = np.arange(len(order), dtype=np.int32)
    rows = np.maximum.accumulate(hashes[order] - steps) + steps
    inside = int(np.searchsorted(rows, len(table)))
    table[rows[:inside], 0] = pairs.first[order[:inside]]
    table[rows[:inside], 1] = pairs.second[order[:inside]]
    rest = order[inside:]  # pairs past the last entry wrap around to the first free entries
    free = np.flatnonzero(table[:, 0] == 0)[: len(rest)] if len(rest) else rest
    table[free, 0], table[free, 1] = pairs.first[rest], pairs.second[rest]


def build_trap_table(address: int, traps: Pairs, copies: Pairs = NO_PAIRS) -> bytearray:
    """Return the bytes for the start of the traps area: directory and both hash tables.

    Args:
        address: address of the area in the target.
        traps: pairs (address of a trap-planted instruction, address of its trampoline).
        copies: pairs (address of a displaced copy in a trampoline, address of the original
            instruction).
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
    """Emit LLVM IR that looks an address up in a hash table of the traps area and jumps to the
    label `found` or `missing`; return the address of the entry, which is valid at `found`.

    Args:
        directory: address of the table's part of the directory.
        key: the address to look up.
    """
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
    """Return the LLVM function trap_hook(saved registers), which the kernel's breakpoint handler
    calls.

    If the breakpoint is a trap that kinst planted, the function sets the saved program counter to
    the site's trampoline and returns 1.  Otherwise, it changes nothing and returns 0.
    """
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
    """Return the LLVM function NAME(saved registers), which runs an entry function with the
    registers of an interrupted CPU.

    Two words after the frame hold the interrupted program counter: the first word if the program
    counter is in the kernel, the second word if it is in user mode.  The other word is 0.

    Args:
        machine: the machine that runs the code.
        name: name of the function.
        entry: the entry function to run.
        descriptor: address of the probe's site descriptor.
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """One of several probes at the same site, whose hits are told apart by a number in memory.

    Attributes:
        selection: which hits belong to the probe.
        entry: the entry function of the probe's clauses.
        descriptor: address of the probe's site descriptor.
    """

    selection: Selection
    entry: IrFunction
    descriptor: int


def write_chooser(machine: CodeMachine, name: str, probes: Sequence[Chosen]) -> IrFunction:
    """Return the LLVM function NAME(site, frame), which runs the entry function of the probe that a
    hit belongs to, if there is one. The function ignores `site`.

    A probe's selection (core/probe.py Selection) says where a number is in memory, and for which
    values of the number a hit belongs to the probe. Probes whose selections differ only in `values`
    are found by one binary search, so that the time hardly depends on the number of probes.

    Args:
        machine: the machine that runs the code.
        name: name of the function.
        probes: the probes at the site.
    """
    params = (IrValue(64, "%site"), IrValue(64, "%frame"))
    code = IrFunction(name, params, 0, machine.convention, internal=False)

    def pointed(argument: Argument) -> IrValue:
        slot, offset = argument.value & POINTED_SLOT, argument.value >> POINTED_SHIFT
        base = code.load(64, code.add(params[1], 8 * slot))
        return code.load(64, code.add(base, offset))

    kinds: dict[tuple[object, ...], list[tuple[int, Chosen]]] = {}
    for one in probes:
        own = one.selection
        kind = own.number, own.state, own.mask, own.wanted
        kinds.setdefault(kind, []).extend((value, one) for value in own.values)
    for numbered in kinds.values():
        own, after = numbered[0][1].selection, code.fresh("other")
        if own.state is not None:
            state, search = code.op("and", pointed(own.state), own.mask), code.fresh("state")
            code.branch(code.icmp("eq", state, own.wanted), search, after)
            code.block(search)
        number = code.convert(pointed(own.number), 32, signed=False)
        _search(code, number, sorted(numbered, key=lambda pair: pair[0]), after)
        code.block(after)
    code.ret()
    return code


def _search(
    code: IrFunction, number: IrValue, probes: Sequence[tuple[int, Chosen]], after: str
) -> None:
    """Emit LLVM IR of a binary search: run the entry function of the probe that has this number as
    its value, if there is one, then jump to the label `after`.

    Args:
        number: the number, an i32.
        probes: (value, probe), sorted by value.
    """
    if len(probes) == 1:
        (value, one), found = probes[0], code.fresh("found")
        code.branch(code.icmp("eq", number, value), found, after)
        code.block(found)
        code.call(one.entry, (const(one.descriptor), code.params[1]))
        code.jump(after)
        return
    middle = len(probes) // 2
    low, high = code.fresh("low"), code.fresh("high")
    code.branch(code.icmp("ult", number, probes[middle][0]), low, high)
    for label, half in ((low, probes[:middle]), (high, probes[middle:])):
        code.block(label)
        _search(code, number, half, after)


def write_fault_hook(machine: CodeMachine) -> IrFunction:
    """Return the LLVM function fault_hook(address), which the kernel's exception table search
    calls.

    If the address is in a displaced copy in a trampoline, the function returns the address of the
    original instruction.  Otherwise, it returns its argument.
    """
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
