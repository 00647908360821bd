"""execargs: the arguments of the current process, as its own memory has them now."""

from __future__ import annotations

from kinst.codegen.firing import TEMP_WORD, Firing, Lowered, Text, Unit
from kinst.codegen.helpers.flow import both, byte_in, least, leave, loop, most, step
from kinst.codegen.helpers.user_memory import user_helper, user_of
from kinst.codegen.ssa import Function, Value, const
from kinst.codegen.values.access import read_access
from kinst.core.errors import KinstError
from kinst.core.layout import CONTEXT_CURTHREAD, FAULT_BADADDR

_SPACE = ord(" ")


def _arguments(unit: Unit, name: str) -> Function:
    """arguments(dst, size, task, room for a word) -> 0 or the address that cannot be read."""
    user = user_of(unit)
    assert user.mm is not None
    code = unit.function(name, 4)
    dst, size, task, room = code.params
    code.store(const(0, 8), dst)

    def word(address: Value) -> Value:
        failed = code.call_c(unit.machine.nofault_read, (room, address, const(8)))
        leave(code, code.icmp("ne", failed, 0), address)
        return code.load(64, room)

    # BEGIN and kernel threads have none.
    leave(code, code.icmp("eq", task, 0), const(0))
    mm = word(code.add(task, user.mm.offsets[-1]))
    leave(code, code.icmp("eq", mm, 0), const(0))
    start, end = word(code.add(mm, user.arg_start)), word(code.add(mm, user.arg_end))
    room_for = code.op("sub", size, const(1))
    count = most(code, least(code, code.op("sub", end, start), room_for), 0)
    leave(code, code.icmp("eq", count, 0), const(0))
    failed = code.call(user_helper(unit), (dst, start, count))
    leave(code, code.icmp("ne", failed, 0), start)
    last = code.local(64)
    code.set(last, count)

    def is_padding() -> Value:
        before = code.op("sub", code.get(last), const(1))
        empty = code.icmp("eq", byte_in(code, dst, before, count), 0)
        return both(code, empty, code.icmp("ne", code.get(last), 0))

    loop(code, is_padding, lambda: step(code, last, -1))
    at = code.local(64)

    def separate() -> None:
        here = code.op("add", dst, code.get(at))
        byte = code.load(8, here)
        code.store(code.select(code.icmp("eq", byte, 0), const(_SPACE, 8), byte), here)
        step(code, at)

    loop(code, lambda: code.icmp("ult", code.get(at), code.get(last)), separate)
    code.store(const(0, 8), code.op("add", dst, code.get(last)))
    code.ret(const(0))
    return code


def execargs(firing: Firing) -> Lowered:
    """The arguments with a space between them, cut to strsize; "" where there are none."""
    code, machine = firing.code, firing.unit.machine
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    if machine.host and machine.user is None:
        code.store(const(0, 8), room)
        return Text(room, size)
    if not user_of(firing.unit).arg_start:
        raise KinstError("execargs is not available: where this kernel keeps them is not known")
    if machine.host:
        at = 8 * (machine.frame_slots + CONTEXT_CURTHREAD)
        task: Lowered = code.load(64, code.add(firing.frame, at))
    else:
        task = read_access(code, machine, machine.builtins["curthread"])
    assert isinstance(task, Value)
    words = (room, const(size), task, code.add(firing.temp(), TEMP_WORD))
    bad = code.call(firing.unit.helper("arguments", _arguments), words)
    firing.faults.add(code, code.icmp("ne", bad, 0), FAULT_BADADDR, bad)
    return Text(room, size)
