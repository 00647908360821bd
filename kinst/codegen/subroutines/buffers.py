"""Subroutines on bytes in memory: in the clause's own memory (alloca, memref), in the kernel
(bcopy, memstr), in the current process (copyin, copyout and the like).  The current process is that
of the thread that hits the probe.

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

from kinst.codegen.firing import Firing, Lowered, Text, Unit
from kinst.codegen.helpers.branching import byte_of, loop, put, when
from kinst.codegen.helpers.memory_access import (
    allocate_zeros,
    read,
    read_user,
    writable,
    write_kernel,
    write_user,
)
from kinst.codegen.helpers.strings_in_memory import read_user_string
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.codegen.subroutines.arguments import Args, fault_if_failed, number, pointer, subroutine
from kinst.codegen.subroutines.strings import write_length
from kinst.core.layout import ARENA


@subroutine("void *alloca(size_t)")
def alloca(firing: Firing, args: Args) -> Lowered:
    return allocate_zeros(firing, number(firing, args[0]))


@subroutine("void bcopy(void *, void *, size_t)")
def bcopy(firing: Firing, args: Args) -> Lowered:
    source, to, size = (
        pointer(firing, args[0]),
        pointer(firing, args[1]),
        number(firing, args[2]),
    )
    to = writable(firing, to, size)
    fault_if_failed(firing, read(firing, to, source, size), source)
    return const(0)


def _fill_zeros(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function fill_zeros(dst, size, byte), which replaces each 0 among the `size`
    bytes at dst by `byte`.
    """
    code = unit.function(name, 3, 0)
    dst, size, byte = code.params
    at = code.local(64)

    def one() -> None:
        old = byte_of(code, dst, code.get(at))
        put(code, at, code.select(code.icmp("eq", old, 0), byte, old), dst)

    loop(code, lambda: code.icmp("ult", code.get(at), size), one)
    code.ret()
    return code


@subroutine("string memstr(void *, char, size_t)")
def memstr(firing: Firing, args: Args) -> Lowered:
    """Emit LLVM IR of memstr(address, character, size); return a string.

    The string has the `size` bytes at the address, with `character` in place of each 0. As in
    FreeBSD, a NUL replaces the last byte, and size 0 gives NULL.
    """
    code = firing.code
    strsize = firing.unit.layout.strsize
    source, byte, size = (
        pointer(firing, args[0]),
        number(firing, args[1]),
        number(firing, args[2]),
    )
    room = firing.text_room(strsize)
    none = code.icmp("eq", size, 0)
    whole = code.select(code.icmp("ult", size, strsize), size, const(strsize))
    most = code.select(none, const(0), code.op("sub", whole, 1))
    fault_if_failed(firing, read(firing, room, source, most), source)
    code.call(firing.unit.helper("fill_zeros", _fill_zeros), (room, most, byte))
    code.store(const(0, 8), code.op("add", room, most))
    return Text(code.select(none, const(0), room), strsize, nullable=True)


@subroutine("void *copyin(uintptr_t, size_t)")
def copyin(firing: Firing, args: Args) -> Lowered:
    code = firing.code
    source, size = number(firing, args[0]), number(firing, args[1])
    to = firing.allocate(size)
    fault_if_failed(firing, read_user(firing, to, source, size), source)
    _end_text(firing, code.op("add", to, size))
    return to


def _end_text(firing: Firing, end: IrValue) -> None:
    """Emit LLVM IR that stores a NUL after the last allocation, so that stringof() ends there. If
    the alloca() arena has no room for the NUL, the code stores nothing.

    Args:
        end: address after the allocation.
    """
    code = firing.code
    used = code.op("sub", end, firing.arena_start())

    def put_nul() -> None:
        code.store(const(0, 8), end)
        code.set(firing.arena(), code.op("and", code.op("add", used, 8), -8))

    when(code, code.icmp("ult", used, ARENA), put_nul)


@subroutine("void copyinto(uintptr_t, size_t, void *)")
def copyinto(firing: Firing, args: Args) -> Lowered:
    source, size = number(firing, args[0]), number(firing, args[1])
    to = writable(firing, pointer(firing, args[2]), size)
    fault_if_failed(firing, read_user(firing, to, source, size), source)
    return const(0)


@subroutine("string copyinstr(uintptr_t, [size_t])")
def copyinstr(firing: Firing, args: Args) -> Lowered:
    code = firing.code
    strsize = firing.unit.layout.strsize
    source, size = number(firing, args[0]), const(strsize)
    if len(args) == 2:
        most = number(firing, args[1])
        size = code.select(code.icmp("ult", most, strsize), code.op("add", most, 1), size)
    room = firing.text_room(strsize)
    fault_if_failed(firing, read_user_string(firing, room, source, size), source)
    return Text(room, strsize)


@subroutine("void copyout(void *, uintptr_t, size_t)", destructive=True)
def copyout(firing: Firing, args: Args) -> Lowered:
    source, to, size = pointer(firing, args[0]), number(firing, args[1]), number(firing, args[2])
    between = firing.allocate(size)
    fault_if_failed(firing, read(firing, between, source, size), source)
    _write_out(firing, to, between, size)
    return const(0)


def _write_out(firing: Firing, to: IrValue, source: IrValue, size: IrValue) -> None:
    """Emit LLVM IR that copies bytes from scratch to the current process's memory. A bad address
    faults.

    If clauses may write the kernel's memory, and `to` is in the kernel's half of the address space,
    the code copies to the kernel's memory instead.
    """
    code, machine = firing.code, firing.unit.machine
    if machine.host or not machine.nofault_write:
        fault_if_failed(firing, write_user(firing, to, source, size), to)
        return
    if machine.user is None:
        fault_if_failed(firing, write_kernel(firing, to, source, size), to)
        return
    failed = code.local(64)
    when(
        code,
        code.icmp("slt", to, 0),
        lambda: code.set(failed, write_kernel(firing, to, source, size)),
        lambda: code.set(failed, write_user(firing, to, source, size)),
    )
    fault_if_failed(firing, code.get(failed), to)


@subroutine("void copyoutstr(const char *, uintptr_t, size_t)", destructive=True)
def copyoutstr(firing: Firing, args: Args) -> Lowered:
    """Emit LLVM IR of copyoutstr(string, address, size), which copies a string and its NUL, at most
    `size` bytes, to the current process's memory.
    """
    code = firing.code
    source, to, size = pointer(firing, args[0]), number(firing, args[1]), number(firing, args[2])
    strsize = const(firing.unit.layout.strsize)
    measure = firing.unit.helper("length", write_length)
    whole = code.op("add", code.call(measure, (source, strsize)), 1)
    size = code.select(code.icmp("ult", whole, size), whole, size)
    _write_out(firing, to, source, size)
    return const(0)


@subroutine("uintptr_t *memref(void *, size_t)")
def memref(firing: Firing, args: Args) -> Lowered:
    """Emit LLVM IR of memref(address, size), which stores the address and the size in 16 bytes of
    the clause's memory; return the address of these bytes.
    """
    address, size = pointer(firing, args[0]), number(firing, args[1])
    pair = firing.allocate(const(16))
    firing.code.store(address, pair)
    firing.code.store(size, firing.code.add(pair, 8))
    return pair
