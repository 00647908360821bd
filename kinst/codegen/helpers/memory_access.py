"""Memory that may not be there: loads that cannot hurt the kernel, strings, the memory of the
current process; and which bytes a clause may write.

The kernel's functions for a process's memory ask whether the kernel's end of the copy is memory
that may be copied from or to (CONFIG_HARDENED_USERCOPY: mm/usercopy.c) and panic where it is not.
Of scratch they cannot know: where an address near the kernel's image stands for a page by
arithmetic alone (amd64, riscv64), the page that it would be is another one, perhaps of a slab.  A
function's own frame is what they let pass first of all, and so everything goes through a buffer on
the stack."""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.firing import TEMP_WORD, Firing, Text, Unit, read_access
from kinst.codegen.helpers.branching import both, copy_bytes, copy_words, leave, loop, put
from kinst.codegen.layout.variable_places import up
from kinst.codegen.ssa import Function, Value, const
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR
from kinst.core.system import UserMemory

# Strings are read in aligned pieces of this many bytes: none crosses a page, so nothing past
# the page of the last byte is touched.
PIECE = 64


def _write_read(unit: Unit, name: str) -> Function:
    """read(dst, src, size) -> 0 or error: the C function, behind the cheap convention."""
    code = unit.function(name, 3)
    _leave_with_scratch(unit, code, *code.params)
    code.ret(code.call_c(unit.machine.nofault_read, code.params))
    return code


def shared(firing: Firing, address: Value) -> Value:
    """The address of something in scratch, as the traced kernel has it: a pointer that BEGIN makes
    on the host means the same in a planted probe."""
    machine = firing.unit.machine
    apart = _apart(machine)
    return firing.code.op("add", address, const(apart)) if apart else address


def _apart(machine: CodeMachine) -> int:
    """From a place of scratch here to the same one in the traced kernel."""
    start = machine.scratch.address
    return start - machine.base & (1 << 64) - 1 if machine.host and start else 0


def here_of(unit: Unit, code: Function, address: Value) -> Value:
    """An address that may be of scratch in the traced kernel, as this machine has it."""
    machine = unit.machine
    apart = _apart(machine)
    if not apart:
        return address
    offset = code.op("sub", address, const(machine.scratch.address))
    inside = code.icmp("ult", offset, machine.scratch.size)
    return code.select(inside, code.op("sub", address, const(apart)), address)


def _leave_with_scratch(unit: Unit, code: Function, dst: Value, src: Value, size: Value) -> None:
    """Where src is in scratch: copy it and return 0.  The host could not read it otherwise."""
    if not unit.pointers:
        return
    src = here_of(unit, code, src)
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


def read(firing: Firing, to: Value, source: Value, size: Value) -> Value:
    """Copy `size` bytes from any address of the traced kernel; 0 or an error."""
    return firing.code.call(firing.unit.helper("read", _write_read), (to, source, size))


def load_bytes(firing: Firing, address: Value, to: Value, size: int) -> None:
    """Copy bytes from any address of the traced kernel; a bad one faults."""
    code = firing.code
    failed = code.call(firing.unit.helper("read", _write_read), (to, address, const(size)))
    firing.faults.add(code, code.icmp("ne", failed, 0), FAULT_BADADDR, address)


def load_word(firing: Firing, address: Value, bits: int) -> Value:
    """The integer at any address of the traced kernel; a bad one faults."""
    code = firing.code
    room = code.add(firing.temp(), TEMP_WORD)
    size = const(bits // 8)
    failed = code.call(firing.unit.helper("read", _write_read), (room, address, size))
    firing.faults.add(code, code.icmp("ne", failed, 0), FAULT_BADADDR, address)
    return code.load(bits, room)


def read_bytes(firing: Firing, source: Value, to: Value, size: int) -> None:
    """Copy bytes from any address of the traced kernel to scratch; a bad one faults."""
    code = firing.code
    failed = code.call(firing.unit.helper("read", _write_read), (to, source, const(size)))
    firing.faults.add(code, code.icmp("ne", failed, 0), FAULT_BADADDR, source)


def _write_read_chars(unit: Unit, name: str) -> Function:
    """read_chars(dst, src, size) -> 0 or error: at most size bytes up to a NUL at dst."""
    return string_reader(unit, name, unit.helper("read", _write_read), cut=False)


def _write_read_string(unit: Unit, name: str) -> Function:
    """read_string(dst, src, size) -> 0 or error: at most size bytes with the NUL at dst."""
    return string_reader(unit, name, unit.helper("read", _write_read), cut=True)


def string_reader(unit: Unit, name: str, reader: Function, cut: bool) -> Function:
    """NAME(dst, src, size) -> 0 or error: at most `size` bytes up to a NUL, by reader(dst, src,
    size); cut: the last of them is a NUL in any case."""
    code = unit.function(name, 3)
    dst, src, size = code.params
    done = code.local(64)
    code.jump("piece")
    code.block("piece")
    at = code.get(done)
    source = code.op("add", src, at)
    whole = code.op("sub", const(PIECE), code.op("and", source, PIECE - 1))
    left = code.op("sub", size, at)
    length = code.select(code.icmp("ult", whole, left), whole, left)
    failed = code.call(reader, (code.op("add", dst, at), source, length))
    code.branch(code.icmp("ne", failed, 0), "bad", "look", likely=False)
    code.block("look")
    end = code.op("add", at, length)
    code.jump("byte")
    code.block("byte")
    here = code.get(done)
    byte = code.load(8, code.op("add", dst, here))
    following = code.op("add", here, 1)
    code.set(done, following)
    code.branch(code.icmp("eq", byte, 0), "good", "more")
    code.block("more")
    code.branch(code.icmp("eq", following, end), "full", "byte")
    code.block("full")
    code.branch(code.icmp("ult", following, size), "piece", "cut")
    code.block("cut")
    if cut:
        code.store(const(0, 8), code.op("sub", code.op("add", dst, size), const(1)))
    code.jump("good")
    code.block("good")
    code.ret(const(0))
    code.block("bad")
    code.ret(const(1))
    return code


def load_string_or_null(firing: Firing, address: Value, size: int) -> Text:
    """load_string() where the address is not 0, else NULL."""
    code = firing.code
    before = code.at
    there, end = code.fresh("there"), code.fresh("string")
    code.branch(code.icmp("eq", address, 0), end, there)
    code.block(there)
    text = load_string(firing, address, size)
    after = code.at
    code.jump(end)
    code.block(end)
    return Text(code.phi(64, [(const(0), before), (text.address, after)]), size, nullable=True)


def load_string(firing: Firing, address: Value, size: int, most: int = 0) -> Text:
    """The string at any address of the traced kernel, cut to size - 1 bytes.

    most: bytes that may be read of it (of a char array, without a NUL perhaps); 0: size."""
    room = firing.text_room(size)
    code = firing.code
    if 0 < most < size:
        code.store(const(0, 8), code.add(room, most))
        helper = firing.unit.helper("read_chars", _write_read_chars)
        failed = code.call(helper, (room, address, const(most)))
    else:
        helper = firing.unit.helper("read_string", _write_read_string)
        failed = code.call(helper, (room, address, const(size)))
    firing.faults.add(code, code.icmp("ne", failed, 0), FAULT_BADADDR, address)
    return Text(room, size)


def _has_zero(code: Function, word: Value) -> Value:
    """Whether one of the word's eight bytes is 0: only such a byte borrows from its top bit
    without having had it set."""
    borrowed = code.op("sub", word, 0x0101010101010101)
    tops = code.op("and", code.op("xor", word, -1), 0x8080808080808080)
    return code.icmp("ne", code.op("and", borrowed, tops), 0)


def _copy_string(unit: Unit, name: str) -> Function:
    """copy_string(dst, src, most, fill): at most `most` bytes up to a NUL, then NULs: one, and
    as many as it takes to reach `fill` bytes in all.  No byte past `most` is read."""
    code = unit.function(name, 4, 0)
    dst, src, most, fill = code.params
    at = code.local(64)

    def room(limit: Value, size: int, yes: str, no: str) -> Value:
        """Go on at `yes` if `size` more bytes are within the limit."""
        here = code.get(at)
        code.branch(code.icmp("ule", code.op("add", here, size), limit), yes, no)
        code.block(yes)
        return here

    def advance(here: Value, size: int, to: str) -> None:
        code.set(at, code.op("add", here, size))
        code.jump(to)

    code.jump("words")
    code.block("words")
    here = room(most, 8, "word", "bytes")
    word = code.load(64, code.op("add", src, here))
    code.branch(_has_zero(code, word), "bytes", "keep_word")
    code.block("keep_word")
    code.store(word, code.op("add", dst, here))
    advance(here, 8, "words")
    code.block("bytes")
    here = room(most, 1, "byte", "end")
    byte = code.load(8, code.op("add", src, here))
    code.branch(code.icmp("eq", byte, 0), "end", "keep_byte")
    code.block("keep_byte")
    code.store(byte, code.op("add", dst, here))
    advance(here, 1, "bytes")
    code.block("end")
    here = code.get(at)
    code.store(const(0, 8), code.op("add", dst, here))
    advance(here, 1, "zero_words")
    code.block("zero_words")
    here = room(fill, 8, "zero_word", "zero_bytes")
    code.store(const(0), code.op("add", dst, here))
    advance(here, 8, "zero_words")
    code.block("zero_bytes")
    here = room(fill, 1, "zero_byte", "done")
    code.store(const(0, 8), code.op("add", dst, here))
    advance(here, 1, "zero_bytes")
    code.block("done")
    code.ret()
    return code


def copy_string_helper(unit: Unit) -> Function:
    """copy_string(dst, src, most, fill): at most `most` bytes up to a NUL, then NULs: one, and
    as many as it takes to reach `fill` bytes in all."""
    return unit.helper("copy_string", _copy_string)


def copy_text(firing: Firing, text: Text, to: Value, size: int, pad: bool = False) -> None:
    """Store the string in `size` bytes, cut if need be; pad: zeros to the end."""
    most = const(min(text.bound, size - 1))
    helper = firing.unit.helper("copy_string", _copy_string)
    firing.code.call(helper, (to, text.address, most, const(size if pad else 0)))


def _compare_strings(unit: Unit, name: str) -> Function:
    """compare_strings(a, b, a's bound, b's bound) -> <0, 0, >0, bytes being unsigned."""
    code = unit.function(name, 4)
    a, b, a_bound, b_bound = code.params
    at = code.local(64)
    code.jump("test")
    code.block("test")
    here = code.get(at)
    bytes_ = []
    for letter, start, bound in (("a", a, a_bound), ("b", b, b_bound)):
        before = code.at
        code.branch(code.icmp("ult", here, bound), f"in_{letter}", f"after_{letter}")
        code.block(f"in_{letter}")
        byte = code.convert(code.load(8, code.op("add", start, here)), 64, signed=False)
        code.jump(f"after_{letter}")
        code.block(f"after_{letter}")
        bytes_.append(code.phi(64, [(byte, f"in_{letter}"), (const(0), before)]))
    code.branch(code.icmp("eq", bytes_[0], bytes_[1]), "same", "end")
    code.block("same")
    code.set(at, code.op("add", here, 1))
    code.branch(code.icmp("eq", bytes_[0], 0), "end", "test")
    code.block("end")
    code.ret(code.op("sub", bytes_[0], bytes_[1]))
    return code


def compare_texts(firing: Firing, left: Text, right: Text) -> Value:
    """i64 below, at or above zero, as strcmp(3); NULL is as ""."""
    helper = firing.unit.helper("compare_strings", _compare_strings)
    bounds = (_bound(firing, left), _bound(firing, right))
    return firing.code.call(helper, (left.address, right.address, *bounds))


def _bound(firing: Firing, text: Text) -> Value:
    """How far it may be read: NULL not at all."""
    if not text.nullable:
        return const(text.bound)
    null = firing.code.icmp("eq", text.address, 0)
    return firing.code.select(null, const(0), const(text.bound))


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


def _copy_between(code: Function, to: Value, source: Value, size: Value) -> None:
    """Copy `size` bytes of scratch or the stack, by words as far as there are whole ones."""
    at = code.local(64)
    code.set(at, const(0))
    copy_words(code, at, to, source, code.op("and", size, -8))
    copy_bytes(code, at, to, source, size)


def _call_kernel(code: Function, function: int, to: Value, source: Value, size: Value) -> None:
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


def _write_read_user(unit: Unit, name: str) -> Function:
    """read_user(dst, src, size): see _in_pieces()."""

    def piece(code: Function, buffer: Value, to: Value, source: Value, length: Value) -> None:
        _call_kernel(code, user_of(unit).read, buffer, source, length)
        _copy_between(code, to, buffer, length)

    return _in_pieces(unit, name, piece)


def user_helper(unit: Unit) -> Function:
    """read_user(dst, src, size) -> 0 or error."""
    return unit.helper("read_user", _write_read_user)


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


def _write_write_user(unit: Unit, name: str) -> Function:
    """write_user(dst, src, size): see _in_pieces()."""

    def piece(code: Function, buffer: Value, to: Value, source: Value, length: Value) -> None:
        _copy_between(code, buffer, source, length)
        _call_kernel(code, _writer(unit), to, buffer, length)

    return _in_pieces(unit, name, piece)


def write_user(firing: Firing, to: Value, source: Value, size: Value) -> Value:
    """Copy `size` bytes to the memory of the current process; 0 or an error."""
    return firing.code.call(firing.unit.helper("write_user", _write_write_user), (to, source, size))


def _read_user_string(unit: Unit, name: str) -> Function:
    """read_user_string(dst, src, size), from the memory of the current process."""
    return string_reader(unit, name, user_helper(unit), cut=True)


def read_user_string(firing: Firing, to: Value, source: Value, size: Value) -> Value:
    """Copy a string of the current process, cut to size - 1 bytes; 0 or an error."""
    helper = firing.unit.helper("read_user_string", _read_user_string)
    return firing.code.call(helper, (to, source, size))


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


WORD = 8


def clear_words_helper(unit: Unit) -> Function:
    """clear_words(dst, size): zeros, size being a multiple of 8 and not 0."""
    return unit.helper("clear_words", _clear_words)


def _clear_words(unit: Unit, name: str) -> Function:
    """clear_words(dst, size): zeros, size being a multiple of 8 and not 0."""
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


def write_copy_words(unit: Unit, name: str) -> Function:
    """copy_words(dst, src, size): size being a multiple of 8."""
    code = unit.function(name, 3, 0)
    dst, src, size = code.params
    copy_words(code, code.local(64), dst, src, size)
    code.ret()
    return code


def clear_array(unit: Unit, name: str) -> Function:
    """Helper clear_array(address, size): size is a multiple of 8 and not 0."""
    code = unit.function(name, 2, 0)
    start, size = code.params
    at = code.local(64)
    code.jump("word")
    code.block("word")
    here = code.get(at)
    code.store(const(0), code.op("add", start, here))
    following = code.add(here, 8)
    code.set(at, following)
    code.branch(code.icmp("ult", following, size), "word", "done")
    code.block("done")
    code.ret()
    return code


def zeros(firing: Firing, size: int) -> Value:
    """The address of a structure that was not assigned."""
    room = firing.text_room(up(size, 8))
    firing.code.call(firing.unit.helper("clear_array", clear_array), (room, const(up(size, 8))))
    return room


def copy_value(firing: Firing, source: Value, to: Value, size: int) -> None:
    """Copy the bytes of a structure or array of the traced kernel to scratch; a bad address
    faults."""
    if size:
        read_bytes(firing, source, to, size)
