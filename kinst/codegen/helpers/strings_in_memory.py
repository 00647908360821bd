"""LLVM IR that loads strings from the kernel or from the current process, copies and compares them.

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

from kinst.codegen.firing import Firing, Text, Unit
from kinst.codegen.helpers.memory_access import read_helper, user_helper
from kinst.codegen.ssa import IrFunction, IrValue, const
from kinst.core.layout import FAULT_BADADDR

# Bytes of the aligned pieces in which strings are read.  No piece crosses a page, so no page after
# the page of the string's last byte is read.
PIECE = 64


def _write_read_chars(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function read_chars(dst, src, size), which copies bytes of the traced kernel
    up to a NUL, at most `size` bytes. It returns 0 on success and another value on failure.
    """
    return _write_string_reader(unit, name, read_helper(unit), cut=False)


def _write_read_string(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function read_string(dst, src, size), which copies a string of the traced
    kernel. It stores at most `size` bytes, the last of them a NUL. It returns 0 on success and
    another value on failure.
    """
    return _write_string_reader(unit, name, read_helper(unit), cut=True)


def _write_string_reader(unit: Unit, name: str, reader: IrFunction, cut: bool) -> IrFunction:
    """Return the LLVM function NAME(dst, src, size), which copies bytes up to a NUL, at most `size`
    bytes. It returns 0 on success and another value on failure.

    Args:
        unit: the LLVM module under construction.
        name: name of the function.
        reader: the LLVM function reader(dst, src, size) that copies bytes.
        cut: whether a string that is too long gets a NUL as its last byte.
    """
    code = unit.function(name, 3)
    dst, src, size = code.params
    done = code.local(64)
    code.jump("piece")
    code.block("piece")
    at = code.get(done)
    source = code.op("add", src, at)
    whole = code.op("sub", const(PIECE), code.op("and", source, PIECE - 1))
    rest = code.op("sub", size, at)
    length = code.select(code.icmp("ult", whole, rest), whole, rest)
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


def load_string_or_null(firing: Firing, address: IrValue, size: int) -> Text:
    """Emit LLVM IR that loads a string as load_string() does, or makes NULL if the address is 0;
    return the string.
    """
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


def load_string(firing: Firing, address: IrValue, size: int, most: int = 0) -> Text:
    """Emit LLVM IR that loads the string at any address of the traced kernel, at most size - 1
    bytes of it; return the string.  The emitted code faults if the memory cannot be read.

    Args:
        firing: the firing.
        address: address of the string.
        size: bytes of the result with its NUL.
        most: number of bytes that may be read (for a char array, which may have no NUL); 0 means
            size.
    """
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


def _has_zero(code: IrFunction, word: IrValue) -> IrValue:
    """Emit LLVM IR that tests whether one of the eight bytes of a word is 0; return an i1.

    The code subtracts 1 from each byte. If the word has a 0 byte, then and only then the
    subtraction sets the top bit of some byte that did not have it set.
    """
    borrowed = code.op("sub", word, 0x0101010101010101)
    tops = code.op("and", code.op("xor", word, -1), 0x8080808080808080)
    return code.icmp("ne", code.op("and", borrowed, tops), 0)


def _copy_bounded(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function copy_bounded(dst, src, most, fill), which copies the bytes of a
    string before its NUL, but at most `most` bytes, and then stores a NUL. It adds further NULs
    until it has stored `fill` bytes. It reads no more than the `most` bytes at src.
    """
    code = unit.function(name, 4, 0)
    dst, src, most, fill = code.params
    at = code.local(64)

    def room(limit: IrValue, size: int, yes: str, no: str) -> IrValue:
        """Emit a branch to the label `yes` if at + size <= limit, else to `no`.  Begin the block
        `yes`; return the value of the variable `at`, the number of bytes copied so far.
        """
        here = code.get(at)
        code.branch(code.icmp("ule", code.op("add", here, size), limit), yes, no)
        code.block(yes)
        return here

    def advance(here: IrValue, size: int, to: str) -> None:
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


def copy_string_helper(unit: Unit) -> IrFunction:
    """Return the LLVM function copy_bounded(dst, src, most, fill), which copies a string and adds
    NULs.
    """
    return unit.helper("copy_bounded", _copy_bounded)


def copy_text(firing: Firing, text: Text, to: IrValue, size: int, pad: bool = False) -> None:
    """Emit a call that stores a string and a NUL in at most `size` bytes.  A string that is too
    long is truncated.

    Args:
        pad: whether to fill the rest of the `size` bytes with zeros.
    """
    most = const(min(text.bound, size - 1))
    helper = firing.unit.helper("copy_bounded", _copy_bounded)
    firing.code.call(helper, (to, text.address, most, const(size if pad else 0)))


def _compare_strings(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function compare_strings(a, b, a's bound, b's bound), which returns a number
    below, at or above 0 as strcmp(3) does.  Bytes are unsigned.  A string without a NUL ends at its
    bound, a number of bytes.
    """
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


def compare_texts(firing: Firing, left: Text, right: Text) -> IrValue:
    """Emit a call that compares two strings as strcmp(3) does; return its result, a signed number.
    NULL equals "".
    """
    helper = firing.unit.helper("compare_strings", _compare_strings)
    bounds = (_bound(firing, left), _bound(firing, right))
    return firing.code.call(helper, (left.address, right.address, *bounds))


def _bound(firing: Firing, text: Text) -> IrValue:
    """Emit LLVM IR that computes how many bytes of a string may be read; return this number. It is
    0 if the string is NULL at run time.
    """
    if not text.nullable:
        return const(text.bound)
    null = firing.code.icmp("eq", text.address, 0)
    return firing.code.select(null, const(0), const(text.bound))


def _read_user_string(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function read_user_string(dst, src, size), which copies a string of the
    current process. It stores at most `size` bytes, the last of them a NUL. It returns 0 on success
    and another value on failure.
    """
    return _write_string_reader(unit, name, user_helper(unit), cut=True)


def read_user_string(firing: Firing, to: IrValue, source: IrValue, size: IrValue) -> IrValue:
    """Emit a call that copies a string of the current process, at most size - 1 bytes and a NUL;
    return its result, which is 0 on success and another value on failure.
    """
    helper = firing.unit.helper("read_user_string", _read_user_string)
    return firing.code.call(helper, (to, source, size))
