"""Linux's system calls: the kernel function of each system call, and where that function finds its
arguments.

Tested by tests/vm/language/test_examples.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.errors import KinstError
from kinst.core.layout import ARGUMENT_SLOT
from kinst.core.probe import Argument, pointed_at
from kinst.core.system import SystemCall
from kinst.image.btf import Btf
from kinst.image.function_table import FunctionTable
from kinst.systems.linux.isafacts import CallNames
from kinst.systems.linux.ptregs import PT_REGS

_MOST_ARGUMENTS = 6
_NONE = "ni_syscall"  # the function for numbers without a system call
# System calls that programs know by another name than the kernel does.  The kernel has used some of
# these names for older calls (include/uapi/asm-generic/unistd.h, syscall_64.tbl).
_NAMES = {
    "newfstat": "fstat", "newlstat": "lstat", "newstat": "stat", "newuname": "uname",
    "sendfile64": "sendfile", "umount": "umount2",
}  # fmt: skip


def system_calls(
    table: FunctionTable, btf: Btf, layouts: Sequence[CallNames], slots: Sequence[int]
) -> list[SystemCall]:
    """Return the system calls of a kernel, sorted by name.

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
            SystemCall(name, calls[name], arguments)
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
