"""Linux's system calls: the kernel function of each system call, where that function finds its
arguments, and where the kernel has the results.

kinst reads results where the kernel stores them. The kernel calls the functions of all system calls
from one place, and then stores the result in struct pt_regs, where the user-mode registers are
saved. If this store has no room for a jump, kinst reads the result at the next call, by which the
kernel goes back to user mode. The end of a system call's function is no good place: it is often a
jump to a function that other parts of the kernel call, too.

Tested by tests/systems/linux/test_system_calls.py and tests/vm/language/test_system_calls.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.layout import ARGUMENT_SLOT
from kinst.core.probe import Argument, Function, Selection, pointed_at
from kinst.core.system import CallResult, SystemCall
from kinst.image.btf import Btf
from kinst.image.function_table import FunctionTable
from kinst.systems.linux.isafacts import CallNames, Dispatch, IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.ptregs import PT_REGS

NATIVE, COMPAT = "vmlinux", "compat"  # modules of the provider's probes
_MOST_ARGUMENTS = 6
_NONE = "ni_syscall"  # the function for numbers without a system call
# System calls that programs know by another name than the kernel does.  The kernel has used some of
# these names for older calls (include/uapi/asm-generic/unistd.h, syscall_64.tbl).
_NAMES = {
    "newfstat": "fstat", "newlstat": "lstat", "newstat": "stat", "newuname": "uname",
    "sendfile64": "sendfile", "umount": "umount2",
}  # fmt: skip


# System calls that end the thread that calls them. These are names of system calls; functions of
# the kernel that never return are in special_names.NEVER_RETURN.
_ENDING_CALLS = ("exit", "exit_group")


def calls_of_kernel(
    kernel: LinuxMemory, table: FunctionTable, btf: Btf, arch: IsaFacts, isa: Isa
) -> list[SystemCall]:
    """Return the system calls of a running kernel with their results, sorted by name.

    Functions that have a system call's name but no number are left out: no program can call them. A
    function that both 32-bit and 64-bit programs enter is returned once, as a system call of 64-bit
    programs.
    """
    slots = isa.argument_slots
    native = system_calls(table, btf, arch.system_calls, slots)
    numbers = call_numbers(kernel, arch.dispatch)
    if numbers:
        native = [call for call in native if call.function.address in numbers]
    calls = _with_results(native, numbers, kernel, table, btf, arch.dispatch, isa)
    entered = {call.function.address for call in native}
    compat: dict[str, SystemCall] = {}
    for layout in arch.compat_calls:
        for call in system_calls(table, btf, [layout], slots):
            if call.function.address not in entered:
                compat.setdefault(call.name, replace(call, module=COMPAT))
    numbers = call_numbers(kernel, arch.compat_dispatch)
    others = [call for call in compat.values() if not numbers or call.function.address in numbers]
    calls += _with_results(others, numbers, kernel, table, btf, arch.compat_dispatch, isa)
    return sorted(calls, key=lambda call: (call.name, call.module))


def system_calls(
    table: FunctionTable, btf: Btf, layouts: Sequence[CallNames], slots: Sequence[int]
) -> list[SystemCall]:
    """Return the functions of a kernel that have names of system calls, sorted by name.

    Args:
        layouts: naming conventions of the functions. The first convention by which the kernel has
            any function is used.
        slots: slots of the registers in which a C function gets its arguments.
    """
    for layout in layouts:
        functions = table.glob(f"{layout.prefix}*")
        if not functions:
            continue
        arguments = _arguments(btf, layout, slots)
        calls = {f.name.removeprefix(layout.prefix): f for f in functions}
        calls.update((name, calls.pop(own)) for own, name in _NAMES.items() if own in calls)
        return [
            SystemCall(name, calls[name], arguments, NATIVE, never_returns=name in _ENDING_CALLS)
            for name in sorted(calls)
            if name.isidentifier() and name != _NONE
        ]
    return []


def _arguments(btf: Btf, layout: CallNames, slots: Sequence[int]) -> tuple[Argument, ...]:
    if not layout.members:
        return tuple(Argument(ARGUMENT_SLOT, slot) for slot in slots[:_MOST_ARGUMENTS])
    try:
        offsets = [btf.offset(PT_REGS, name) + after for name, after in layout.members]
    except KinstError:  # this kernel's structure has other members
        return ()
    return tuple(pointed_at(slots[0], offset) for offset in offsets)


def call_named(name: str, table: FunctionTable, layouts: Iterable[CallNames]) -> str:
    """Return a hint how to trace the system call of this name; "" if the kernel has no such system
    call.

    Args:
        layouts: naming conventions of the functions of system calls.
    """
    functions = [layout.prefix + name for layout in layouts if table.lookup(layout.prefix + name)]
    if not functions:
        return ""
    return (
        f"syscall::{name}:entry and syscall::{name}:return trace the system call;"
        f" its function is {functions[0]}"
    )


def call_numbers(kernel: LinuxMemory, dispatch: Dispatch | None) -> Mapping[int, tuple[int, ...]]:
    """Return the numbers of the system calls that enter each function, by the function's running
    address; an empty mapping if the kernel has no table of them.
    """
    found: dict[int, tuple[int, ...]] = {}
    for number, address in enumerate(call_table(kernel, dispatch).tolist()):
        found[address] = (*found.get(address, ()), number)
    return found


def call_table(kernel: LinuxMemory, dispatch: Dispatch | None) -> npt.NDArray[np.uint64]:
    """Return the running address of each system call's function, by the call's number; an empty
    array if the kernel has no table of them."""
    if dispatch is None or not kernel.has(dispatch.table):
        return np.zeros(0, np.uint64)
    symbols = kernel.elf.symbols
    size = int(symbols.size[symbols.indexes(dispatch.table)[0]])
    return np.frombuffer(kernel.read(kernel.symbol(dispatch.table), size), "<u8")


def _with_results(
    calls: Sequence[SystemCall],
    numbers: Mapping[int, tuple[int, ...]],
    kernel: LinuxMemory,
    table: FunctionTable,
    btf: Btf,
    dispatch: Dispatch | None,
    isa: Isa,
) -> list[SystemCall]:
    """Return the system calls with their results: the instructions at which the kernel has the
    result, and how to find it there. Without `dispatch`, return the calls unchanged.

    Args:
        numbers: the numbers of the system calls that enter each function (call_numbers()).
    """
    if dispatch is None or not numbers:
        return list(calls)
    state, mask, wanted = dispatch.state or ("", 0, 0)
    members = [dispatch.number, dispatch.result, *([state] if state else [])]
    if not all(btf.has(PT_REGS, member) for member in members):
        return list(calls)
    number = btf.offset(PT_REGS, dispatch.number)
    leaving = {function.address for function in table.lookup(dispatch.leave)}
    places = [
        (address, value, pointed_at(base, number),
         pointed_at(base, btf.offset(PT_REGS, state)) if state else None)
        for name in dispatch.functions
        for function in table.lookup(name)
        for address, value, base in _places(kernel, function, leaving, btf, dispatch, isa)
    ]  # fmt: skip
    return [
        replace(call, results=tuple(
            CallResult(at, value, Selection(which, own, flags, mask, wanted))
            for at, value, which, flags in places if own
        ))
        for call in calls
        for own in [numbers.get(call.function.address, ())]
    ]  # fmt: skip


def _places(
    kernel: LinuxMemory,
    function: Function,
    leaving: Container[int],
    btf: Btf,
    dispatch: Dispatch,
    isa: Isa,
) -> Sequence[tuple[int, Argument, int]]:
    """Return the instructions of a function at which kinst can read results of system calls:
    (running address, how to find the result, frame slot of the register with the address of
    pt_regs).

    These are stores of the whole result register into pt_regs, after a call and with no jump or
    branch in between. If one of these stores is too short for a jump, they are the calls of the
    function Dispatch.leave instead, which the kernel makes after the stores.

    Args:
        function: a function of Dispatch.functions.
        leaving: address of the function Dispatch.leave.
    """
    offset = btf.offset(PT_REGS, dispatch.result)
    slots = {register.d_name: register.slot for register in isa.registers}
    result, regs = Argument(ARGUMENT_SLOT, isa.result_slot), isa.argument_slots[0]
    code = kernel.read(function.address, function.size)
    after_call, short = False, False
    stores, leaves = [], []
    for instruction in isa.decode(code, function.address):
        stored = dispatch.store(instruction.code)
        if after_call and stored is not None and stored[1] == offset and stored[0] in slots:
            stores.append((instruction.address, result, slots[stored[0]]))
            short |= instruction.size < dispatch.jump_size
        flow = isa.flow(instruction.code, instruction.address)
        if stores and flow.kind in ("call", "jump") and flow.target in leaving:
            leaves.append((instruction.address, pointed_at(regs, offset), regs))
        after_call = flow.kind == "call" or (after_call and flow.kind == "next")
    return leaves if short and leaves else stores


def result_sites(calls: Iterable[SystemCall]) -> frozenset[int]:
    """Return the addresses of the instructions at which the kernel has results of system calls."""
    return frozenset(result.address for call in calls for result in call.results)
