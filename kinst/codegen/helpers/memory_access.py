"""LLVM IR that accesses memory which may not be mapped: loads that cannot fault in the kernel,
copies from and to the memory of the current process, and the check of the bytes that a clause may
write.

The kernel's functions that copy from and to a process check the address on the kernel's side, and
panic if the check fails (CONFIG_HARDENED_USERCOPY: mm/usercopy.c). The check may fail for an
address in scratch: on amd64 and riscv64, it computes the page of an address near the kernel's image
by arithmetic, and gets a wrong page for scratch. It never fails for an object in the stack frame of
the calling function. So kinst copies everything through a buffer on the stack.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.firing import TEMP_WORD, Firing, Unit, read_access
from kinst.codegen.helpers.branching import both, copy_bytes, copy_words, leave, loop, put
from kinst.codegen.layout.variable_places import round_up
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR
from kinst.core.system import UserMemory
from kinst.core.words import MASK


def read_helper(unit: Unit) -> IrFunction:
    """Return the LLVM function read(dst, src, size), which copies bytes of the traced kernel. It
    returns 0 on success, and another value if some of the bytes cannot be read.
    """
    return unit.helper("read", _write_read)


def _write_read(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function read(dst, src, size), which calls the kernel's no-fault read.  The
    function has the machine's calling convention, which saves more registers than a C function
    saves.
    """
    code = unit.function(name, 3)
    _leave_with_scratch(unit, code, *code.params)
    code.ret(code.call_c(unit.machine.nofault_read, code.params))
    return code


def target_address(firing: Firing, address: IrValue) -> IrValue:
    """Emit LLVM IR that converts an address in scratch to the traced kernel's address of the same
    byte; return that address.

    Scratch is mapped in the traced kernel and in kinst's process, at different addresses. D
    programs only see the traced kernel's addresses: a pointer that BEGIN computes on the host is
    valid in a planted probe.

    Args:
        address: an address that is valid for the code under construction.
    """
    machine = firing.unit.machine
    apart = _apart(machine)
    return firing.code.op("add", address, const(apart)) if apart else address


def _apart(machine: CodeMachine) -> int:
    """Return how far apart, modulo 2**64, the two addresses of scratch are: the address in the
    traced kernel minus the address in kinst's process. 0 for code in the traced kernel.
    """
    start = machine.scratch.address
    return start - machine.base & MASK if machine.host and start else 0


def local_address(unit: Unit, code: IrFunction, address: IrValue) -> IrValue:
    """Emit LLVM IR that converts an address of a D program to one that the code under construction
    can use; return the converted address.

    D programs have addresses of the traced kernel. In code for the host, an address in scratch
    becomes the address at which kinst's process has mapped the same byte. All other addresses stay
    as they are. In code for the target, every address stays as it is.
    """
    machine = unit.machine
    apart = _apart(machine)
    if not apart:
        return address
    offset = code.op("sub", address, const(machine.scratch.address))
    inside = code.icmp("ult", offset, machine.scratch.size)
    return code.select(inside, code.op("sub", address, const(apart)), address)


def _leave_with_scratch(
    unit: Unit, code: IrFunction, dst: IrValue, src: IrValue, size: IrValue
) -> None:
    """Emit LLVM IR that tests whether all `size` bytes at src are in scratch. If so, it copies them
    to dst and returns 0 from the function under construction.

    Code on the host can read scratch only in this way. If the D program cannot compute addresses in
    scratch, no code is emitted.
    """
    if not unit.scratch_pointers:
        return
    src = local_address(unit, code, src)
    scratch, start = unit.machine.scratch, const(unit.machine.address(0))
    offset = code.op("sub", src, start)
    inside = code.icmp("ult", offset, scratch.size)
    fits = code.icmp("ule", size, code.op("sub", const(scratch.size), offset))
    at = code.local(64)
    own, other = code.fresh("own"), code.fresh("other")
    code.branch(both(code, inside, fits), own, other)
    code.block(own)
    copy_bytes(code, at, dst, src, size)
    code.ret(const(0))
    code.block(other)


def read(firing: Firing, to: IrValue, source: IrValue, size: IrValue) -> IrValue:
    """Emit a call that copies `size` bytes from any address of the traced kernel; return its
    result, which is 0 on success and another value on failure.
    """
    return firing.code.call(read_helper(firing.unit), (to, source, size))


def load_word(firing: Firing, address: IrValue, bits: int) -> IrValue:
    """Emit LLVM IR that loads an integer of `bits` bits from any address of the traced kernel;
    return the integer.  The emitted code faults if the memory cannot be read.
    """
    code = firing.code
    room = code.add(firing.temp(), TEMP_WORD)
    size = const(bits // 8)
    failed = code.call(read_helper(firing.unit), (room, address, size))
    firing.faults.add(code, code.icmp("ne", failed, 0), FAULT_BADADDR, address)
    return code.load(bits, room)


def read_bytes(firing: Firing, source: IrValue, to: IrValue, size: int) -> None:
    """Emit LLVM IR that copies `size` bytes from any address of the traced kernel to scratch.  The
    emitted code faults if the memory cannot be read.
    """
    if not size:
        return
    code = firing.code
    failed = code.call(read_helper(firing.unit), (to, source, const(size)))
    firing.faults.add(code, code.icmp("ne", failed, 0), FAULT_BADADDR, source)


BUFFER = 128  # bytes of a helper's buffer, on the stack that the probe fires on


def user_of(unit: Unit) -> UserMemory:
    """Return the functions that the code under construction can call to access the current
    process's memory. Raises KinstError if no such functions are known.
    """
    if unit.machine.user is None:
        raise KinstError(
            "the current process's memory cannot be read: kinst knows no function of this kernel"
            " that reads it"
        )
    return unit.machine.user


def _leave_without_user(unit: Unit, code: IrFunction) -> None:
    """Emit LLVM IR that returns 1 (failure) from the function under construction if the current
    thread is a kernel thread, which has no user memory.
    """
    access = user_of(unit).mm
    if access is not None and not unit.machine.host:
        mm = read_access(code, unit.machine, access)
        if isinstance(mm, IrValue):
            leave(code, code.icmp("eq", mm, 0), const(1))


def _copy_between(code: IrFunction, to: IrValue, source: IrValue, size: IrValue) -> None:
    """Emit LLVM IR that copies `size` bytes between scratch and the stack, by words as far as
    possible.
    """
    at = code.local(64)
    code.set(at, const(0))
    copy_words(code, at, to, source, code.op("and", size, -8))
    copy_bytes(code, at, to, source, size)


def _call_kernel(
    code: IrFunction, function: int, to: IrValue, source: IrValue, size: IrValue
) -> None:
    """Emit a call of one of the kernel's copy functions; if the call fails, the function under
    construction returns 1.

    Args:
        function: address of the kernel's function.
    """
    failed = code.call_c(function, (to, source, size))
    leave(code, code.icmp("ne", failed, 0), const(1))


_Piece = Callable[[IrFunction, IrValue, IrValue, IrValue, IrValue], None]


def _in_pieces(unit: Unit, name: str, piece: _Piece) -> IrFunction:
    """Return the LLVM function NAME(dst, src, size), which copies in pieces of at most BUFFER
    bytes. It returns 0 on success and another value on failure.

    In code for the host, the function always fails if kinst knows no functions that access user
    memory (CodeMachine.user).

    Args:
        unit: the LLVM module under construction.
        name: name of the function.
        piece: piece(code, buffer, dst, src, length) emits the copy of one piece.
    """
    code = unit.function(name, 3)
    if unit.machine.host and unit.machine.user is None:
        code.ret(const(1))
        return code
    _leave_without_user(unit, code)
    dst, src, size = code.params
    buffer, done = code.buffer(BUFFER), code.local(64)

    def step() -> None:
        at = code.get(done)
        rest = code.op("sub", size, at)
        length = code.select(code.icmp("ult", rest, BUFFER), rest, const(BUFFER))
        piece(code, buffer, code.op("add", dst, at), code.op("add", src, at), length)
        code.set(done, code.op("add", at, length))

    loop(code, lambda: code.icmp("ult", code.get(done), size), step)
    code.ret(const(0))
    return code


def _write_read_user(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function read_user(dst, src, size), which copies from the current process's
    memory.
    """

    def piece(
        code: IrFunction, buffer: IrValue, to: IrValue, source: IrValue, length: IrValue
    ) -> None:
        _call_kernel(code, user_of(unit).read, buffer, source, length)
        _copy_between(code, to, buffer, length)

    return _in_pieces(unit, name, piece)


def user_helper(unit: Unit) -> IrFunction:
    """Return the LLVM function read_user(dst, src, size), which copies from the current process's
    memory and returns 0 on success and another value on failure.
    """
    return unit.helper("read_user", _write_read_user)


def read_user(firing: Firing, to: IrValue, source: IrValue, size: IrValue) -> IrValue:
    """Emit a call that copies `size` bytes from the current process's memory; return its result,
    which is 0 on success and another value on failure.
    """
    return firing.code.call(user_helper(firing.unit), (to, source, size))


def _writer(unit: Unit) -> int:
    """Return the address of the kernel's function that writes to the current process's memory.

    Raises KinstError if none is known.
    """
    write = user_of(unit).write
    if not write:
        raise KinstError(
            "the current process's memory cannot be written: kinst knows no function of this kernel"
            " that writes it"
        )
    return write


def _write_write_user(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function write_user(dst, src, size), which copies to the current process's
    memory.
    """

    def piece(
        code: IrFunction, buffer: IrValue, to: IrValue, source: IrValue, length: IrValue
    ) -> None:
        _copy_between(code, buffer, source, length)
        _call_kernel(code, _writer(unit), to, buffer, length)

    return _in_pieces(unit, name, piece)


def write_user(firing: Firing, to: IrValue, source: IrValue, size: IrValue) -> IrValue:
    """Emit a call that copies `size` bytes to the current process's memory; return its result,
    which is 0 on success and another value on failure.
    """
    return firing.code.call(firing.unit.helper("write_user", _write_write_user), (to, source, size))


def _write_write_kernel(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function write_kernel(dst, src, size), which copies to memory of the traced
    kernel and returns 0 on success and another value on failure. It never writes scratch.

    In the target, write_kernel() writes bytes only after the kernel's no-fault read could read the
    bytes at dst. This read fails for an address of a process, since it checks the address. The
    kernel's no-fault write has no such check, and would oops.
    """
    code, machine = unit.function(name, 3), unit.machine
    dst, src, size = code.params
    start = const(machine.scratch.address)
    leave(code, code.icmp("ult", code.op("sub", dst, start), machine.scratch.size), const(1))
    leave(code, code.icmp("ult", code.op("sub", start, dst), size), const(1))
    if machine.host:
        code.ret(code.call_c(machine.nofault_write, (dst, src, size)))
        return code
    buffer, done = code.buffer(BUFFER), code.local(64)

    def piece() -> None:
        at = code.get(done)
        rest = code.op("sub", size, at)
        length = code.select(code.icmp("ult", rest, BUFFER), rest, const(BUFFER))
        to = code.op("add", dst, at)
        _call_kernel(code, machine.nofault_read, buffer, to, length)
        _copy_between(code, buffer, code.op("add", src, at), length)
        _call_kernel(code, machine.nofault_write, to, buffer, length)
        code.set(done, code.op("add", at, length))

    loop(code, lambda: code.icmp("ult", code.get(done), size), piece)
    code.ret(const(0))
    return code


def write_kernel(firing: Firing, to: IrValue, source: IrValue, size: IrValue) -> IrValue:
    """Emit a call that copies `size` bytes from scratch to memory of the traced kernel outside of
    scratch; return its result, which is 0 on success and another value on failure.
    """
    helper = firing.unit.helper("write_kernel", _write_write_kernel)
    return firing.code.call(helper, (to, source, size))


def write_anywhere(firing: Firing, to: IrValue, source: IrValue, size: int) -> None:
    """Emit LLVM IR that copies `size` bytes from scratch to the address `to`.

    `to` may be in the clause's alloca() memory, in a D variable that is not dynamic, or anywhere in
    the traced kernel's memory outside of scratch.  The emitted code faults if the bytes there
    cannot be written.
    """
    code = firing.code
    here, bad = _unwritable(firing, to, const(size))
    kernel, own, done = (code.fresh(n) for n in ("kernel", "own", "stored"))
    code.branch(bad, kernel, own)
    code.block(own)
    at = code.local(64)
    code.set(at, const(0))
    copy_bytes(code, at, here, source, const(size))
    code.jump(done)
    code.block(kernel)
    failed = write_kernel(firing, to, source, const(size))
    firing.faults.add(code, code.icmp("ne", failed, 0), FAULT_BADADDR, to)
    code.jump(done)
    code.block(done)


def allocate_zeros(firing: Firing, size: IrValue) -> IrValue:
    """Emit LLVM IR that allocates `size` bytes and sets them to 0; return their address. They are
    freed when the clause ends. The emitted code faults if scratch space runs out.
    """
    room = firing.allocate(size)
    firing.code.call(firing.unit.helper("clear", _clear), (room, size))
    return room


def _clear(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function clear(dst, size), which stores zeros."""
    code = unit.function(name, 2, 0)
    dst, size = code.params
    at = code.local(64)
    loop(code, lambda: code.icmp("ult", code.get(at), size), lambda: put(code, at, const(0), dst))
    code.ret()
    return code


def writable(firing: Firing, address: IrValue, size: IrValue) -> IrValue:
    """Emit LLVM IR that checks whether the clause may write `size` bytes at an address; return the
    address as local_address() converts it.

    The emitted code faults for bytes that the clause may not write.
    """
    here, bad = _unwritable(firing, address, size)
    firing.faults.add(firing.code, bad, FAULT_BADADDR, address)
    return here


def _unwritable(firing: Firing, address: IrValue, size: IrValue) -> tuple[IrValue, IrValue]:
    """Emit LLVM IR that tests whether a clause may write the `size` bytes at an address. Return the
    address as local_address() converts it, and an i1, 1 if the clause may not write all of them.

    A clause may write its own alloca() memory and D variables that are not dynamic.
    """
    code, unit = firing.code, firing.unit
    here = local_address(unit, code, address) if unit.variable_pointers else address
    bad = _outside(code, here, size, firing.arena_start(), code.get(firing.arena()))
    if unit.variable_pointers:
        scratch, layout = unit.machine.scratch, unit.layout
        local = code.add(firing.temp(), firing.clause_memory())
        start = const(unit.machine.address(scratch.globals))
        for area, length in ((start, layout.globals_size), (local, layout.clause_size)):
            bad = code.op("and", bad, _outside(code, here, size, area, const(length)))
    return here, bad


def _outside(
    code: IrFunction, address: IrValue, size: IrValue, start: IrValue, length: IrValue
) -> IrValue:
    """Emit LLVM IR that tests whether any of the `size` bytes at `address` is outside an area;
    return an i1.

    Args:
        start: address of the area.
        length: bytes of the area.
    """
    offset = code.op("sub", address, start)
    outside = code.icmp("ugt", offset, length)
    beyond = code.icmp("ugt", size, code.op("sub", length, offset))
    return code.op("or", outside, beyond)


WORD = 8


def clear_words(firing: Firing, to: IrValue, size: int) -> None:
    """Emit a call that stores `size` bytes of zeros; `size` is a multiple of 8 and not 0."""
    firing.code.call(firing.unit.helper("clear_words", _write_clear_words), (to, const(size)))


def _write_clear_words(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function clear_words(dst, size), which stores zeros.  The size is a multiple
    of 8 and not 0.
    """
    code = unit.function(name, 2, 0)
    dst, size = code.params
    at = code.local(64)
    code.jump("word")
    code.block("word")
    here = code.get(at)
    code.store(const(0), code.op("add", dst, here))
    following = code.op("add", here, WORD)
    code.set(at, following)
    code.branch(code.icmp("ult", following, size), "word", "done")
    code.block("done")
    code.ret()
    return code


def copy_scratch_words(firing: Firing, to: IrValue, source: IrValue, size: int) -> None:
    """Emit a call that copies `size` bytes, a multiple of 8, within scratch."""
    helper = firing.unit.helper("copy_words", _write_copy_words)
    firing.code.call(helper, (to, source, const(size)))


def _write_copy_words(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function copy_words(dst, src, size), which copies words.  The size is a
    multiple of 8.
    """
    code = unit.function(name, 3, 0)
    dst, src, size = code.params
    copy_words(code, code.local(64), dst, src, size)
    code.ret()
    return code


def zeros(firing: Firing, size: int) -> IrValue:
    """Emit LLVM IR that clears `size` bytes of working memory; return their address. These bytes
    are the value of a structure that was never assigned.
    """
    room = firing.text_room(round_up(size, 8))
    clear_words(firing, room, round_up(size, 8))
    return room
