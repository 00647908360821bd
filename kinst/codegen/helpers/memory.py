"""Subroutines on memory: of the clause (alloca), of the kernel (bcopy), of the traced program
(copyin, copyout); those that keep something between calls (strtok, rand); and progenyof."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.codegen.firing import TEMP_WORD, Firing, Lowered, Text, Unit
from kinst.codegen.helpers import more as subr_more
from kinst.codegen.helpers import text as subr_text
from kinst.codegen.helpers.flow import byte_of, leave, loop, put, step, when
from kinst.codegen.helpers.user_memory import read_user, read_user_string, write_user
from kinst.codegen.ssa import Function, Value, const
from kinst.codegen.values.access import read_access
from kinst.codegen.values.builtins import context_word
from kinst.codegen.values.memory import copy_text, here_of, read
from kinst.codegen.values.paths import d_path
from kinst.core.errors import KinstError
from kinst.core.layout import (
    ARENA,
    CONTEXT_CURTHREAD,
    CONTEXT_PID,
    CONTEXT_PPID,
    CONTEXT_TIMESTAMP,
    FAULT_BADADDR,
    FAULT_ILLOP,
    STATE_RANDOM,
)

_Args = Sequence[Lowered]

ANCESTORS = 1024  # generations that progenyof() goes back
# Constants of splitmix64 (S. Vigna's public-domain generator).
_GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
AF_INET, AF_INET6 = 2, 10  # of Linux


def _number(firing: Firing, value: Lowered) -> Value:
    """An integer or pointer as 64 bits; those of the prototypes with less are unsigned."""
    if isinstance(value, Text):
        raise KinstError("a number was expected")
    return firing.code.convert(value, 64, signed=False)


def _pointer(firing: Firing, value: Lowered) -> Value:
    """An address; that of a copy for a string, so that all its bytes are in scratch."""
    if isinstance(value, Text):
        size = firing.unit.layout.strsize
        room = firing.text_room(size)
        copy_text(firing, value, room, size, pad=True)
        return room
    return _number(firing, value)


def _bad_address(firing: Firing, failed: Value, address: Value) -> None:
    firing.faults.add(firing.code, firing.code.icmp("ne", failed, 0), FAULT_BADADDR, address)


def _alloca(firing: Firing, args: _Args) -> Lowered:
    return allocate_zeros(firing, _number(firing, args[0]))


def allocate_zeros(firing: Firing, size: Value) -> Value:
    """Address of `size` zero bytes that last until the clause ends; faults for want of scratch
    space."""
    room = firing.allocate(size)
    firing.code.call(firing.unit.helper("clear", _clear), (room, size))
    return room


def _clear(unit: Unit, name: str) -> Function:
    """clear(dst, size): zeros."""
    code = unit.function(name, 2, 0)
    dst, size = code.params
    at = code.local(64)
    loop(code, lambda: code.icmp("ult", code.get(at), size), lambda: put(code, at, const(0), dst))
    code.ret()
    return code


def _bcopy(firing: Firing, args: _Args) -> Lowered:
    source, to, size = (
        _pointer(firing, args[0]),
        _pointer(firing, args[1]),
        _number(firing, args[2]),
    )
    to = writable(firing, to, size)
    _bad_address(firing, read(firing, to, source, size), source)
    return const(0)


def writable(firing: Firing, address: Value, size: Value) -> Value:
    """The address as this machine has it.  Faults unless these bytes are the clause's own, or
    those of variables that are not dynamic: nothing else may be written."""
    code, unit = firing.code, firing.unit
    here = here_of(unit, code, address) if unit.shared else address
    bad = _outside(code, here, size, firing.arena_start(), code.get(firing.arena()))
    if unit.shared:
        scratch, layout = unit.machine.scratch, unit.layout
        local = code.add(firing.temp(), firing.clause_memory())
        start = const(unit.machine.address(scratch.globals))
        for area, length in ((start, layout.globals_size), (local, layout.clause_size)):
            bad = code.op("and", bad, _outside(code, here, size, area, const(length)))
    firing.faults.add(code, bad, FAULT_BADADDR, address)
    return here


def _outside(code: Function, address: Value, size: Value, start: Value, length: Value) -> Value:
    """i1: whether some of these bytes are not in the area."""
    offset = code.op("sub", address, start)
    outside = code.icmp("ugt", offset, length)
    beyond = code.icmp("ugt", size, code.op("sub", length, offset))
    return code.op("or", outside, beyond)


def _fill_zeros(unit: Unit, name: str) -> Function:
    """fill_zeros(dst, size, byte): byte where there is a NUL."""
    code = unit.function(name, 3, 0)
    dst, size, byte = code.params
    at = code.local(64)

    def one() -> None:
        found = byte_of(code, dst, code.get(at))
        put(code, at, code.select(code.icmp("eq", found, 0), byte, found), dst)

    loop(code, lambda: code.icmp("ult", code.get(at), size), one)
    code.ret()
    return code


def _memstr(firing: Firing, args: _Args) -> Lowered:
    """FreeBSD's: the last of the bytes becomes the NUL; no bytes are NULL."""
    code = firing.code
    strsize = firing.unit.layout.strsize
    source, byte, size = (
        _pointer(firing, args[0]),
        _number(firing, args[1]),
        _number(firing, args[2]),
    )
    room = firing.text_room(strsize)
    none = code.icmp("eq", size, 0)
    whole = code.select(code.icmp("ult", size, strsize), size, const(strsize))
    most = code.select(none, const(0), code.op("sub", whole, 1))
    _bad_address(firing, read(firing, room, source, most), source)
    code.call(firing.unit.helper("fill_zeros", _fill_zeros), (room, most, byte))
    code.store(const(0, 8), code.op("add", room, most))
    return Text(code.select(none, const(0), room), strsize, nullable=True)


def _copyin(firing: Firing, args: _Args) -> Lowered:
    code = firing.code
    source, size = _number(firing, args[0]), _number(firing, args[1])
    to = firing.allocate(size)
    _bad_address(firing, read_user(firing, to, source, size), source)
    _end_text(firing, code.op("add", to, size))
    return to


def _end_text(firing: Firing, end: Value) -> None:
    """A NUL behind the last thing allocated, if there is room, so that stringof() of it has no
    more."""
    code = firing.code
    used = code.op("sub", end, firing.arena_start())

    def put_nul() -> None:
        code.store(const(0, 8), end)
        code.set(firing.arena(), code.op("and", code.op("add", used, 8), -8))

    when(code, code.icmp("ult", used, ARENA), put_nul)


def _copyinto(firing: Firing, args: _Args) -> Lowered:
    source, size = _number(firing, args[0]), _number(firing, args[1])
    to = writable(firing, _pointer(firing, args[2]), size)
    _bad_address(firing, read_user(firing, to, source, size), source)
    return const(0)


def _copyinstr(firing: Firing, args: _Args) -> Lowered:
    code = firing.code
    strsize = firing.unit.layout.strsize
    source, size = _number(firing, args[0]), const(strsize)
    if len(args) == 2:
        most = _number(firing, args[1])
        size = code.select(code.icmp("ult", most, strsize), code.op("add", most, 1), size)
    room = firing.text_room(strsize)
    _bad_address(firing, read_user_string(firing, room, source, size), source)
    return Text(room, strsize)


def _copyout(firing: Firing, args: _Args) -> Lowered:
    source, to, size = _pointer(firing, args[0]), _number(firing, args[1]), _number(firing, args[2])
    between = firing.allocate(size)
    _bad_address(firing, read(firing, between, source, size), source)
    _bad_address(firing, write_user(firing, to, between, size), to)
    return const(0)


def _copyoutstr(firing: Firing, args: _Args) -> Lowered:
    """At most `size` bytes, with the NUL if it is among them."""
    code = firing.code
    source, to, size = _pointer(firing, args[0]), _number(firing, args[1]), _number(firing, args[2])
    strsize = const(firing.unit.layout.strsize)
    measure = firing.unit.helper("length", subr_text.length)
    whole = code.op("add", code.call(measure, (source, strsize)), 1)
    size = code.select(code.icmp("ult", whole, size), whole, size)
    _bad_address(firing, write_user(firing, to, source, size), to)
    return const(0)


def _memref(firing: Firing, args: _Args) -> Lowered:
    """Two words: the address and the size."""
    address, size = _pointer(firing, args[0]), _number(firing, args[1])
    pair = firing.allocate(const(16))
    firing.code.store(address, pair)
    firing.code.store(size, firing.code.add(pair, 8))
    return pair


def _strtok(firing: Firing, args: _Args) -> Lowered:
    """The string is kept, and how far it is used up, until the probe's clauses are over."""
    code, unit = firing.code, firing.unit
    strsize = const(unit.layout.strsize)
    keep, position = firing.kept_text(), firing.local("strtok")  # 0: nothing is kept
    string, delimiters = args
    if isinstance(string, Text):
        fresh, kept = code.fresh("fresh"), code.fresh("kept")
        code.branch(code.icmp("eq", string.address, 0), kept, fresh)
        code.block(fresh)
        copy_text(firing, Text(string.address, string.bound), keep, unit.layout.strsize)
        code.set(position, const(1))
        code.jump(kept)
        code.block(kept)
    if not isinstance(delimiters, Text):  # NULL
        delimiters = Text(const(0), 1)
        firing.faults.add(code, const(1, 1), FAULT_BADADDR, const(0))
    at = code.get(position)
    firing.faults.add(code, code.icmp("eq", at, 0), FAULT_BADADDR, const(0))
    at = code.op("sub", at, const(1))
    room, bits = firing.text_room(unit.layout.strsize), firing.text_room(32)
    words = (
        room, strsize, code.op("add", keep, at), code.op("sub", strsize, at),
        delimiters.address, const(min(delimiters.bound, unit.layout.strsize)), bits,
    )  # fmt: skip
    used = code.call(unit.helper("strtok", subr_text.strtok), words)
    ended = code.icmp("slt", used, 0)
    code.set(position, code.op("add", code.op("add", at, used), 1))

    def nothing_left() -> None:
        code.store(const(0, 8), keep)
        code.set(position, const(1))

    when(code, ended, nothing_left)
    empty = code.icmp("eq", code.load(8, room), 0)
    address = code.select(empty, const(0), room)
    return Text(address, unit.layout.strsize, nullable=True)


def _rand(firing: Firing, args: _Args) -> Lowered:
    """splitmix64, one generator for each CPU, begun at the cycle counter."""
    code, machine = firing.code, firing.unit.machine
    if machine.host:
        now = code.load(64, context_word(firing, CONTEXT_TIMESTAMP))
    elif machine.timestamp_asm:
        now = code.asm(machine.timestamp_asm, machine.timestamp_constraints)
    else:
        now = firing.state
    place = firing.field(STATE_RANDOM)
    old = code.load(64, place)
    begun = code.select(code.icmp("eq", old, 0), code.op("or", now, 1), old)
    value = code.op("add", begun, _GAMMA)
    code.store(value, place)
    for shift, factor in ((30, _MIX1), (27, _MIX2)):
        value = code.op("mul", code.op("xor", value, code.op("lshr", value, shift)), factor)
    return code.op("xor", value, code.op("lshr", value, 31))


def _progeny(unit: Unit, name: str) -> Function:
    """progeny(task, pid, room for a word) -> 1 if the task's process or one of its ancestors
    has this id, else 0."""
    code = unit.function(name, 3)
    task, pid, room = code.params
    parent_at, id_at = unit.machine.parents
    here, steps = code.local(64), code.local(64)
    code.set(here, task)

    def fetch(offset: int, size: int) -> Value:
        source = code.op("add", code.get(here), offset)
        words = (room, source, const(size))
        failed = code.call_c(unit.machine.nofault_read, words)
        leave(code, code.icmp("ne", failed, 0), const(0))
        return code.convert(code.load(8 * size, room), 64, signed=False)

    def up() -> None:
        leave(code, code.icmp("eq", fetch(id_at, 4), pid), const(1))
        parent = fetch(parent_at, 8)
        # The first task of all is its own parent.
        leave(code, code.icmp("eq", parent, code.get(here)), const(0))
        code.set(here, parent)
        step(code, steps)

    loop(code, lambda: code.icmp("ult", code.get(steps), ANCESTORS), up)
    code.ret(const(0))
    return code


def _progenyof(firing: Firing, args: _Args) -> Lowered:
    code, machine = firing.code, firing.unit.machine
    pid = code.op("and", _number(firing, args[0]), 0xFFFFFFFF)
    if not machine.host:
        if machine.parents == (0, 0):
            raise KinstError("progenyof( ) is not available: this kernel's parents are not known")
        task = read_access(code, machine, machine.builtins["curthread"])
        assert isinstance(task, Value)
        words = (task, pid, code.add(firing.temp(), TEMP_WORD))
        return code.call(firing.unit.helper("progeny", _progeny), words)
    task = code.load(64, context_word(firing, CONTEXT_CURTHREAD))
    # In BEGIN, END and timers the process is kinst, of which the parent is known.
    own = [
        code.icmp("eq", code.load(64, context_word(firing, word)), pid)
        for word in (CONTEXT_PID, CONTEXT_PPID)
    ]
    near = code.convert(code.op("or", *own), 64, signed=False)
    if machine.parents == (0, 0):
        return near
    words = (task, pid, code.add(firing.temp(), TEMP_WORD))
    far = code.call(firing.unit.helper("progeny", _progeny), words)
    return code.op("or", near, far)


def _inet(name: str, size: int, address: Value, firing: Firing) -> Lowered:
    code = firing.code
    # Readers of the text may look as far as its bound.
    room, bytes_ = firing.text_room(subr_more.INET_ROOM), firing.text_room(16)
    _bad_address(firing, read(firing, bytes_, address, const(size)), address)
    write = {"inet4": subr_more.inet4, "inet6": subr_more.inet6}[name]
    code.call(firing.unit.helper(name, write), (room, bytes_))
    return Text(room, subr_more.INET_ROOM)


def _inet_ntoa(firing: Firing, args: _Args) -> Lowered:
    return _inet("inet4", 4, _pointer(firing, args[0]), firing)


def _inet_ntoa6(firing: Firing, args: _Args) -> Lowered:
    return _inet("inet6", 16, _pointer(firing, args[0]), firing)


def _inet_ntop(firing: Firing, args: _Args) -> Lowered:
    code = firing.code
    family, address = _number(firing, args[0]), _pointer(firing, args[1])
    old, new = code.icmp("eq", family, AF_INET), code.icmp("eq", family, AF_INET6)
    neither = code.op("xor", code.op("or", old, new), const(1, 1))
    firing.faults.add(code, neither, FAULT_ILLOP, family)
    yes, no, end = (code.fresh(n) for n in ("inet4", "inet6", "inet"))
    code.branch(old, yes, no)
    found: list[tuple[Value, str]] = []
    for label, name, size in ((yes, "inet4", 4), (no, "inet6", 16)):
        code.block(label)
        text = _inet(name, size, address, firing)
        assert isinstance(text, Text)
        found.append((text.address, code.at))
        code.jump(end)
    code.block(end)
    return Text(code.phi(64, found), subr_more.INET_ROOM)


def _d_path(firing: Firing, args: _Args) -> Lowered:
    return d_path(firing, _pointer(firing, args[0]))


LOWER: dict[str, Callable[[Firing, _Args], Lowered]] = {
    "alloca": _alloca,
    "bcopy": _bcopy,
    "copyin": _copyin,
    "copyinstr": _copyinstr,
    "copyinto": _copyinto,
    "copyout": _copyout,
    "copyoutstr": _copyoutstr,
    "d_path": _d_path,
    "memstr": _memstr,
    "inet_ntoa": _inet_ntoa,
    "inet_ntoa6": _inet_ntoa6,
    "inet_ntop": _inet_ntop,
    "memref": _memref,
    "progenyof": _progenyof,
    "rand": _rand,
    "strtok": _strtok,
}
