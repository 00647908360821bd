"""LLVM IR of stack(), ustack(), stackdepth, uregs[] and the like: the stacks and registers of the
interrupted code.

In the target, the kernel's own unwinder (core/system.py Unwinder) walks the kernel's stack from the
registers that the trampoline saved.  On the host, kinst has walked the kernel's stack before and
stored it after the other CONTEXT_* words (CONTEXT_STACK).  The emitted code walks the user's stack
by frame pointers, from the registers that were saved when the thread entered the kernel.

Tested by tests/codegen/test_process_state.py.
"""

from __future__ import annotations

from kinst.codegen.firing import TEMP_WORD, Firing, Unit, context_word, current_thread
from kinst.codegen.helpers.branching import both, leave, loop, step, when
from kinst.codegen.helpers.memory_access import (
    WORD,
    clear_words,
    copy_scratch_words,
    load_word,
    user_helper,
    user_of,
)
from kinst.codegen.helpers.strings_in_memory import copy_string_helper
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.codegen.values.builtin_values import builtin
from kinst.core.dtypes import UINT64, USER_WORDS
from kinst.core.errors import KinstError
from kinst.core.layout import CONTEXT_STACK, FAULT_ILLOP, SITE_PC
from kinst.core.system import Unwinder, UserState

DEPTH = 512  # largest number of frames that stackdepth counts; a 16 KB stack has fewer


def stack_depth(firing: Firing) -> IrValue:
    """Emit LLVM IR that counts the frames of the kernel's stack; return their number."""
    if firing.unit.machine.host:
        return firing.code.load(64, context_word(firing, CONTEXT_STACK))
    return _unwind(firing, firing.text_room(DEPTH * WORD), DEPTH)


def kernel_stack(firing: Firing, to: IrValue, frames: int) -> None:
    """Emit LLVM IR that stores the program counters of the kernel's stack at `to`, for the first
    `frames` frames. If the stack has fewer frames, zeros follow.
    """
    if firing.unit.machine.host:
        copy_scratch_words(firing, to, context_word(firing, CONTEXT_STACK + 1), frames * WORD)
        return
    clear_words(firing, to, frames * WORD)
    _unwind(firing, to, frames)


def _unwinder(firing: Firing) -> Unwinder:
    unwinder = firing.unit.machine.unwinder
    if unwinder is None:
        raise KinstError(
            "stack() is not available: this kernel has no unwinder that clauses can call",
            "with -x plant=stop kinst unwinds the stack itself",
        )
    return unwinder


def _unwind(firing: Firing, to: IrValue, frames: int) -> IrValue:
    """Emit LLVM IR that stores the program counters of at most `frames` frames of the kernel's
    stack at `to`; return the number of stored frames.
    """
    code, unwinder = firing.code, _unwinder(firing)
    slots = {r.d_name: r.slot for r in firing.unit.machine.registers}
    saved = firing.text_room(unwinder.size)
    clear_words(firing, saved, (unwinder.size + WORD - 1) & -WORD)
    for offset, value in unwinder.constants:
        code.store(const(value), code.add(saved, offset))
    for offset, name in unwinder.registers:
        saved_at = code.add(firing.frame, WORD * slots[name]) if name else None
        word = _program_counter(firing) if saved_at is None else code.load(64, saved_at)
        code.store(word, code.add(saved, offset))
    return code.call(firing.unit.helper("unwind", _call_unwinder), (saved, to, const(frames)))


def _program_counter(firing: Firing) -> IrValue:
    """Emit LLVM IR that reads the address of the probe's instruction; return the address.  In a
    sample of a CPU, the result is the CPU's program counter, or 0 if the CPU was in user mode.
    """
    code, machine = firing.code, firing.unit.machine
    site_pc = code.load(64, code.add(firing.site, SITE_PC))
    if not machine.samples:
        return site_pc
    pc, sampled, goes_on = code.local(64), code.fresh("sampled"), code.fresh("place")
    code.set(pc, site_pc)
    code.branch(code.icmp("eq", site_pc, 0), sampled, goes_on)
    code.block(sampled)
    code.set(pc, code.load(64, code.add(firing.frame, WORD * machine.frame_slots)))
    code.jump(goes_on)
    code.block(goes_on)
    return code.get(pc)


def _call_unwinder(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function unwind(saved registers, dst, frames), which calls the kernel's
    unwinder. It stores the program counters of at most `frames` frames at dst, and returns their
    number.

    The function has the machine's calling convention, which saves more registers than a C function
    saves.
    """
    assert unit.machine.unwinder is not None
    code = unit.function(name, 3)
    frames = code.call_c(unit.machine.unwinder.address, (*code.params, const(0)))
    code.ret(code.op("and", frames, 0xFFFFFFFF))
    return code


_NAME = 2 * WORD  # offset of the program's name in the USER_WORDS words of a record

_NAME_SIZE = (USER_WORDS - 2) * WORD


def _known(unit: Unit) -> UserState:
    if unit.machine.user_state is None:
        raise KinstError(
            "ustack() and uregs[] are not available: kinst does not know where this kernel saves"
            " the registers of user mode"
        )
    return unit.machine.user_state


def _outside_processes(firing: Firing) -> bool:
    """Return whether the code runs on the host for a program that traces no kernel. Then there is
    no process whose registers and memory the code can read.
    """
    machine = firing.unit.machine
    return machine.host and machine.user is None


def store_process(firing: Firing, to: IrValue) -> None:
    """Emit LLVM IR that stores at the address `to` the USER_WORDS words by which a record describes
    the current process: process id, address of the program's code, name.
    """
    code = firing.code
    clear_words(firing, to, USER_WORDS * WORD)
    pid = builtin(firing, "pid", UINT64)
    assert isinstance(pid, IrValue)
    code.store(pid, to)
    if not _outside_processes(firing):
        room = firing.text_room(_NAME_SIZE)
        code.call(firing.unit.helper("process", _process), (to, current_thread(firing), room))


def user_stack(firing: Firing, to: IrValue, frames: int) -> None:
    """Emit LLVM IR that stores the record of ustack() at `to`: the current process, then the
    program counters of the first `frames` frames. If the stack has fewer frames, zeros follow.
    """
    store_process(firing, to)
    at = firing.code.add(to, USER_WORDS * WORD)
    clear_words(firing, at, frames * WORD)
    _walk(firing, at, frames)


def user_depth(firing: Firing) -> IrValue:
    """Emit LLVM IR that counts the frames of the user's stack; return their number."""
    return _walk(firing, firing.text_room(DEPTH * WORD), DEPTH)


def user_caller(firing: Firing) -> IrValue:
    """Emit LLVM IR that reads the program counter of the second frame of the user's stack; return
    it, or 0 if there is no second frame.
    """
    room = firing.text_room(2 * WORD)
    second = firing.code.add(room, WORD)
    firing.code.store(const(0), second)
    _walk(firing, room, 2)
    return firing.code.load(64, second)


def user_register(firing: Firing, index: int) -> IrValue:
    """Emit LLVM IR that reads uregs[index]; return the register's value.  In a thread without user
    mode, the code faults as an illegal operation.
    """
    code, unit = firing.code, firing.unit
    slots = {r.slot for r in unit.machine.registers if r.index == index}
    names = {r.d_name for r in unit.machine.registers if r.slot in slots}
    if _outside_processes(firing):
        firing.faults.add(code, code.icmp("eq", current_thread(firing), 0), FAULT_ILLOP, const(0))
        return const(0)
    places = {at for name, at in _known(unit).registers.items() if name in names}
    if not places:
        raise KinstError(f"uregs[{index}] is not a register that this kernel saves")
    room = code.add(firing.temp(), TEMP_WORD)
    saved = code.call(
        unit.helper("saved_registers", _saved_registers), (current_thread(firing), room)
    )
    firing.faults.add(code, code.icmp("eq", saved, 0), FAULT_ILLOP, const(0))
    return load_word(firing, code.add(saved, min(places)), 64)


def _walk(firing: Firing, to: IrValue, frames: int) -> IrValue:
    if _outside_processes(firing):
        return const(0)
    words = (current_thread(firing), to, const(frames), firing.code.add(firing.temp(), TEMP_WORD))
    return firing.code.call(firing.unit.helper("walk_user", _walk_user), words)


def _word(unit: Unit, code: IrFunction, scratch: IrValue, address: IrValue) -> IrValue:
    """Emit LLVM IR that reads a word of the kernel's memory; return the word.  If the word cannot
    be read, the function under construction returns 0.

    Args:
        scratch: address of 8 bytes of working memory.
    """
    failed = code.call_c(unit.machine.nofault_read, (scratch, address, const(WORD)))
    leave(code, code.icmp("ne", failed, 0), const(0))
    return code.load(64, scratch)


def _mm(unit: Unit, code: IrFunction, task: IrValue, scratch: IrValue) -> IrValue:
    """Emit LLVM IR that reads the address of a thread's address space structure; return the
    address.  If the thread has no address space, the function under construction returns 0.

    Args:
        scratch: address of 8 bytes of working memory.
    """
    access = user_of(unit).mm
    assert access is not None
    leave(code, code.icmp("eq", task, 0), const(0))
    mm = _word(unit, code, scratch, code.add(task, access.offsets[-1]))
    leave(code, code.icmp("eq", mm, 0), const(0))
    return mm


def _saved_registers(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function saved_registers(task, working memory of 8 bytes), which returns the
    address of the thread's saved user-mode registers, or 0 if the thread has no user mode.
    """
    state = _known(unit)
    code = unit.function(name, 2)
    task, room = code.params
    _mm(unit, code, task, room)
    stack = _word(unit, code, room, code.add(task, state.stack))
    code.ret(code.add(stack, state.saved))
    return code


def _process(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function process(dst, task, working memory for the name), which stores the
    words by which a record describes a process (store_process()). It leaves out the first word, the
    process id. It always returns 0.
    """
    state = _known(unit)
    code = unit.function(name, 3)
    dst, task, room = code.params
    mm = _mm(unit, code, task, room)
    code.store(_word(unit, code, room, code.add(mm, state.code_start)), code.add(dst, WORD))
    at = mm
    for offset in state.program:
        at = _word(unit, code, room, code.add(at, offset))
        leave(code, code.icmp("eq", at, 0), const(0))
    failed = code.call_c(unit.machine.nofault_read, (room, at, const(_NAME_SIZE)))
    leave(code, code.icmp("ne", failed, 0), const(0))
    words = (code.add(dst, _NAME), room, const(_NAME_SIZE - 1), const(_NAME_SIZE))
    code.call(copy_string_helper(unit), words)
    code.ret(const(0))
    return code


def _walk_user(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function walk_user(task, dst, frames, working memory of 16 bytes). It walks
    the user's stack by frame pointers, stores the program counters of at most `frames` frames at
    dst, and returns how many it has stored.

    The walk ends at a frame pointer that is 0, unaligned, unreadable, or not above the previous
    frame pointer (stacks grow down).
    """
    state = _known(unit)
    code = unit.function(name, 4)
    task, store, entries, room = code.params
    saved = code.call(unit.helper("saved_registers", _saved_registers), (task, room))
    leave(code, code.icmp("eq", saved, 0), const(0))
    pc = _word(unit, code, room, code.add(saved, state.pc))
    first = _word(unit, code, room, code.add(saved, state.frame))
    leave(code, code.icmp("eq", pc, 0), const(0))
    code.store(pc, store)
    count, frame = code.local(64, 1), code.local(64)
    code.set(frame, first)
    low = min(state.next_at, state.return_at)

    def goes_on() -> IrValue:
        here = code.get(frame)
        aligned = code.icmp("eq", code.op("and", here, 7), 0)
        more = code.icmp("ult", code.get(count), entries)
        return both(code, more, code.icmp("ne", here, 0), aligned)

    def one_frame() -> None:
        here = code.get(frame)
        failed = code.call(user_helper(unit), (room, code.add(here, low), const(2 * WORD)))
        above = code.load(64, code.add(room, state.next_at - low))
        back = code.load(64, code.add(room, state.return_at - low))
        back = code.op("and", back, const(state.address_mask))
        code.set(frame, code.select(code.icmp("ugt", above, here), above, const(0)))

        def keep() -> None:
            place = code.op("add", store, code.op("shl", code.get(count), 3))
            code.store(back, place)
            step(code, count)

        good = both(code, code.icmp("eq", failed, 0), code.icmp("ne", back, 0))
        when(code, good, keep, lambda: code.set(frame, const(0)))

    loop(code, goes_on, one_frame)
    code.ret(code.get(count))
    return code
