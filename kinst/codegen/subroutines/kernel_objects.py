"""Subroutines that read the kernel's own data structures: d_path(), path_in_mount(), progenyof(),
getmajor() and getminor().
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.codegen.firing import TEMP_WORD, Firing, Lowered, Unit, context_word, current_thread
from kinst.codegen.helpers.branching import leave, loop, step
from kinst.codegen.helpers.paths import kernel_path
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.codegen.subroutines.arguments import Args, number, pointer, subroutine, wide
from kinst.core.dialect import DeviceNumbers, EncodedBits
from kinst.core.errors import KinstError
from kinst.core.layout import CONTEXT_PID, CONTEXT_PPID

ANCESTORS = 1024  # generations that progenyof() follows


def _write_progeny(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function progeny(task, pid, working memory of 8 bytes), which returns 1 if
    the task's process or one of its ancestors has the id `pid`, else 0.
    """
    code = unit.function(name, 3)
    task, pid, room = code.params
    parent_at, id_at = unit.machine.parents
    here, steps = code.local(64), code.local(64)
    code.set(here, task)

    def fetch(offset: int, size: int) -> IrValue:
        source = code.op("add", code.get(here), offset)
        words = (room, source, const(size))
        failed = code.call_c(unit.machine.nofault_read, words)
        leave(code, code.icmp("ne", failed, 0), const(0))
        return code.convert(code.load(8 * size, room), 64, signed=False)

    def up() -> None:
        leave(code, code.icmp("eq", fetch(id_at, 4), pid), const(1))
        parent = fetch(parent_at, 8)
        # The first task is its own parent.
        leave(code, code.icmp("eq", parent, code.get(here)), const(0))
        code.set(here, parent)
        step(code, steps)

    loop(code, lambda: code.icmp("ult", code.get(steps), ANCESTORS), up)
    code.ret(const(0))
    return code


def _has_ancestor(firing: Firing, pid: IrValue) -> IrValue:
    """Emit a call that tests whether the current process or one of its ancestors has the id `pid`;
    return its result, 1 or 0.
    """
    words = (current_thread(firing), pid, firing.code.add(firing.temp(), TEMP_WORD))
    return firing.code.call(firing.unit.helper("progeny", _write_progeny), words)


@subroutine("int progenyof(pid_t)")
def progenyof(firing: Firing, args: Args) -> Lowered:
    code, machine = firing.code, firing.unit.machine
    pid = code.op("and", number(firing, args[0]), 0xFFFFFFFF)
    if not machine.host:
        if machine.parents == (0, 0):
            raise KinstError(
                "progenyof( ) is not available: kinst does not know where this kernel keeps the"
                " parent of a process"
            )
        return _has_ancestor(firing, pid)
    # In BEGIN, END and timers the process is kinst, whose parent is known.
    ancestors = [
        code.icmp("eq", code.load(64, context_word(firing, word)), pid)
        for word in (CONTEXT_PID, CONTEXT_PPID)
    ]
    near = code.convert(code.op("or", *ancestors), 64, signed=False)
    if machine.parents == (0, 0):
        return near
    return code.op("or", near, _has_ancestor(firing, pid))


@subroutine("string d_path(struct path *)")
def d_path(firing: Firing, args: Args) -> Lowered:
    return kernel_path(firing, pointer(firing, args[0]))


@subroutine("string path_in_mount(void *, void *)")
def path_in_mount(firing: Firing, args: Args) -> Lowered:
    return kernel_path(firing, *(pointer(firing, one) for one in args))


@subroutine("uint_t getmajor(uint64_t)")
def getmajor(firing: Firing, args: Args) -> Lowered:
    return _joined(firing, args, _devices(firing, "getmajor").major)


@subroutine("uint_t getminor(uint64_t)")
def getminor(firing: Firing, args: Args) -> Lowered:
    return _joined(firing, args, _devices(firing, "getminor").minor)


def _devices(firing: Firing, name: str) -> DeviceNumbers:
    devices = firing.unit.machine.dialect.devices
    if devices is None:
        raise KinstError(
            f"{name}() is not available: kinst does not know how this kernel encodes device numbers"
        )
    return devices


def _joined(firing: Firing, args: Args, pieces: Sequence[EncodedBits]) -> IrValue:
    """Emit LLVM IR that extracts the major or minor number from the first argument, a device
    number; return it.

    Args:
        pieces: the bit fields of the device number, and where each belongs in the result.
    """
    code, number, joined = firing.code, wide(firing, args[0]), const(0)
    for k, piece in enumerate(pieces):
        bits = code.op("lshr", number, piece.shift) if piece.shift else number
        bits = code.op("and", bits, piece.mask)
        bits = code.op("shl", bits, piece.place) if piece.place else bits
        joined = code.op("or", joined, bits) if k else bits
    return joined
