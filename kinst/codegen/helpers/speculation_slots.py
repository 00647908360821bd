"""LLVM IR of speculation(), speculate(), commit() and discard() (core/layout.py HEADER_NSPEC; for
invalid numbers, dtrace_speculation_*() in illumos' dtrace.c).

Speculative records go into the ring like all other records, with the number of their speculation.
The consumer keeps them until the record of a commit() or discard() arrives.  So commit() copies no
records and discard() removes none, and a speculation's slot is free as soon as the speculation
ends.
"""

from __future__ import annotations

from kinst.codegen.firing import Firing, Unit
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.layout import (
    FAULT_ILLOP,
    HEADER_NSPEC,
    HEADER_SPECSIZE,
    HEADER_SPECULATIONS,
    STATE_SPEC_DROPS,
    STATE_SPEC_FAILED,
    STATE_SPECULATIONS,
)


def new_speculation(firing: Firing) -> IrValue:
    """Emit a call that takes a free slot for speculation(); return the slot's number, from 1.  If
    no slot is free, the emitted code counts a drop and the number is 0.
    """
    return firing.code.call(firing.unit.helper("new_speculation", _new), (firing.state,))


def speculation_word(firing: Firing, name: str, number: IrValue) -> IrValue:
    """Emit LLVM IR that performs speculate(), commit() or discard(); return the number to record.

    The consumer knows the speculation by the recorded number, which is different for each use of a
    slot (core/layout.py HEADER_NSPEC). D programs use slot numbers, which speculation() gives out
    again and again. The recorded number 0 means no speculation.

    A slot number above nspec faults as an illegal operation. If the speculation of a speculate()
    does not exist or has no room, the emitted code ends the clause: no later action runs and
    nothing is recorded.

    Args:
        name: name of the action.
        number: number of the speculation's slot, as the D program passes it.
    """
    code, unit = firing.code, firing.unit
    identifier = code.op("and", number, 0xFFFFFFFF)  # dtrace_specid_t has 32 bits
    most = code.load(64, const(unit.machine.address(HEADER_NSPEC)))
    firing.faults.add(code, code.icmp("ugt", identifier, most), FAULT_ILLOP, const(0))
    if name != "speculate":
        return code.call(unit.helper("end_speculation", _end), (identifier,))
    size = const(firing.record_size)
    use = code.call(unit.helper("speculate", _speculate), (firing.state, identifier, size))
    keep = code.fresh("keep")
    code.branch(code.icmp("ne", use, 0), keep, firing.following)
    code.block(keep)
    return use


def _new(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function new_speculation(state page), which takes a free slot and returns its
    number, or 0.
    """
    code = unit.function(name, 1)
    (state,) = code.params
    most = code.load(64, const(unit.machine.address(HEADER_NSPEC)))
    at = code.local(64)
    code.jump("look")
    code.block("look")
    slot = code.get(at)
    code.branch(code.icmp("ult", slot, most), "slot", "none")
    code.block("slot")
    number = code.op("add", slot, 1)
    code.set(at, number)
    address = _slot(code, unit, slot)
    word = code.load_atomic(address)
    code.branch(code.convert(word, 1, signed=False), "look", "free")
    code.block("free")
    ours = code.exchange_if(address, word, code.op("add", word, 1), "seq_cst seq_cst")
    code.branch(ours, "found", "look")
    code.block("found")
    code.ret(number)
    code.block("none")
    code.increment(code.add(state, STATE_SPEC_FAILED))
    code.ret(const(0))
    return code


def _slot(code: IrFunction, unit: Unit, slot: IrValue) -> IrValue:
    return code.add(code.op("shl", slot, 3), unit.machine.address(HEADER_SPECULATIONS))


def _look_up(code: IrFunction, unit: Unit, identifier: IrValue) -> tuple[IrValue, IrValue, IrValue]:
    """Emit LLVM IR that looks up a slot for speculations. If the slot is not in use, the function
    under construction returns 0. Return the slot's index from 0, the address of the slot's word,
    and that word.

    Args:
        identifier: number of the slot in D programs, from 1.
    """
    most = code.load(64, const(unit.machine.address(HEADER_NSPEC)))
    slot = code.op("sub", identifier, 1)
    code.branch(code.icmp("ult", slot, most), "known", "none")
    code.block("none")
    code.ret(const(0))
    code.block("known")
    address = _slot(code, unit, slot)
    word = code.load_atomic(address)
    code.branch(code.convert(word, 1, signed=False), "used", "none")
    code.block("used")
    return slot, address, word


def _use(code: IrFunction, word: IrValue, identifier: IrValue) -> IrValue:
    return code.op("or", code.op("shl", word, 8), identifier)


def _end(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function end_speculation(slot number), which frees the slot and returns the
    number to record (speculation_word()). It returns 0 if the slot is not in use.
    """
    code = unit.function(name, 1)
    (identifier,) = code.params
    _, address, word = _look_up(code, unit, identifier)
    ours = code.exchange_if(address, word, code.op("add", word, 1), "seq_cst seq_cst")
    code.branch(ours, "ended", "none")
    code.block("ended")
    code.ret(_use(code, word, identifier))
    return code


def _speculate(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function speculate(state page, slot number, bytes), which counts the bytes of
    a record against the speculation's limit (specsize). It returns the number to record
    (speculation_word()), or 0 if the slot is not in use or the limit would be exceeded.
    """
    code = unit.function(name, 3)
    state, identifier, size = code.params
    slot, _, word = _look_up(code, unit, identifier)
    place = code.op("add", code.add(state, STATE_SPECULATIONS), code.op("shl", slot, 3))
    before = code.load(64, place)
    mark = code.op("shl", word, 32)
    same = code.icmp("eq", code.op("and", before, const(0xFFFFFFFF << 32)), mark)
    taken = code.select(same, code.op("and", before, 0xFFFFFFFF), const(0))
    total = code.op("add", taken, size)
    room = code.load(64, const(unit.machine.address(HEADER_SPECSIZE)))
    code.branch(code.icmp("ule", total, room), "fits", "full")
    code.block("fits")
    code.store(code.op("or", mark, total), place)
    code.ret(_use(code, word, identifier))
    code.block("full")
    code.increment(code.add(state, STATE_SPEC_DROPS))
    code.ret(const(0))
    return code
