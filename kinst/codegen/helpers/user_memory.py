"""The memory of the current process, by the kernel's own functions that take no fault there.

Those ask whether the kernel's end of the copy is memory that may be copied from or to
(CONFIG_HARDENED_USERCOPY: mm/usercopy.c) and panic where it is not.  Of scratch they cannot know:
where an address near the kernel's image stands for a page by arithmetic alone (amd64, riscv64), the
page that it would be is another one, perhaps of a slab.  A function's own frame is what they let
pass first of all, and so everything goes through a buffer on the stack.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.firing import Firing, Unit
from kinst.codegen.helpers.flow import copy_bytes, copy_words, leave, loop
from kinst.codegen.ssa import Function, Value, const
from kinst.codegen.values.access import read_access
from kinst.codegen.values.memory import string_reader
from kinst.core.errors import KinstError
from kinst.core.target import UserMemory

BUFFER = 128  # bytes on whatever stack a probe fires on


def user_of(unit: Unit) -> UserMemory:
    """How the current process is read.  Raises KinstError where it cannot be."""
    if unit.machine.user is None:
        raise KinstError(
            "the traced program's memory cannot be read: this kernel offers no function for it"
        )
    return unit.machine.user


def _leave_without_user(unit: Unit, code: Function) -> None:
    """A kernel thread has no memory of its own: return an error."""
    access = user_of(unit).mm
    if access is not None and not unit.machine.host:
        mm = read_access(code, unit.machine, access)
        if isinstance(mm, Value):
            leave(code, code.icmp("eq", mm, 0), const(1))


def _copy(code: Function, to: Value, source: Value, size: Value) -> None:
    """Copy `size` bytes of scratch or the stack, by words as far as there are whole ones."""
    at = code.local(64)
    code.set(at, const(0))
    copy_words(code, at, to, source, code.op("and", size, -8))
    copy_bytes(code, at, to, source, size)


def _call(code: Function, function: int, to: Value, source: Value, size: Value) -> None:
    """Call one of the kernel's functions; leaves with its failure."""
    failed = code.call_c(function, (to, source, size))
    leave(code, code.icmp("ne", failed, 0), const(1))


_Piece = Callable[[Function, Value, Value, Value, Value], None]


def _in_pieces(unit: Unit, name: str, piece: _Piece) -> Function:
    """name(dst, src, size) -> 0 or error; on a host without a target always an error.  It is made
    of piece(code, buffer, dst, src, length), which copies at most BUFFER bytes."""
    code = unit.function(name, 3)
    if unit.machine.host and unit.machine.user is None:
        code.ret(const(1))
        return code
    _leave_without_user(unit, code)
    dst, src, size = code.params
    buffer, done = code.buffer(BUFFER), code.local(64)

    def step() -> None:
        at = code.get(done)
        left = code.op("sub", size, at)
        length = code.select(code.icmp("ult", left, BUFFER), left, const(BUFFER))
        piece(code, buffer, code.op("add", dst, at), code.op("add", src, at), length)
        code.set(done, code.op("add", at, length))

    loop(code, lambda: code.icmp("ult", code.get(done), size), step)
    code.ret(const(0))
    return code


def _read_user(unit: Unit, name: str) -> Function:
    """read_user(dst, src, size): see _in_pieces()."""

    def piece(code: Function, buffer: Value, to: Value, source: Value, length: Value) -> None:
        _call(code, user_of(unit).read, buffer, source, length)
        _copy(code, to, buffer, length)

    return _in_pieces(unit, name, piece)


def user_helper(unit: Unit) -> Function:
    """read_user(dst, src, size) -> 0 or error."""
    return unit.helper("read_user", _read_user)


def read_user(firing: Firing, to: Value, source: Value, size: Value) -> Value:
    """Copy `size` bytes from the memory of the current process; 0 or an error."""
    return firing.code.call(user_helper(firing.unit), (to, source, size))


def _writer(unit: Unit) -> int:
    """The kernel's function that writes.  Raises KinstError where it has none."""
    write = user_of(unit).write
    if not write:
        raise KinstError(
            "the traced program's memory cannot be written: there is no function for it here"
        )
    return write


def _write_user(unit: Unit, name: str) -> Function:
    """write_user(dst, src, size): see _in_pieces()."""

    def piece(code: Function, buffer: Value, to: Value, source: Value, length: Value) -> None:
        _copy(code, buffer, source, length)
        _call(code, _writer(unit), to, buffer, length)

    return _in_pieces(unit, name, piece)


def write_user(firing: Firing, to: Value, source: Value, size: Value) -> Value:
    """Copy `size` bytes to the memory of the current process; 0 or an error."""
    return firing.code.call(firing.unit.helper("write_user", _write_user), (to, source, size))


def _read_user_string(unit: Unit, name: str) -> Function:
    """read_user_string(dst, src, size), from the memory of the current process."""
    return string_reader(unit, name, user_helper(unit), cut=True)


def read_user_string(firing: Firing, to: Value, source: Value, size: Value) -> Value:
    """Copy a string of the current process, cut to size - 1 bytes; 0 or an error."""
    helper = firing.unit.helper("read_user_string", _read_user_string)
    return firing.code.call(helper, (to, source, size))
