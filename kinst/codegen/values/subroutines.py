"""Calls of D's subroutines: what each makes of its arguments (see dlang/check/subroutines.py).

Where a subroutine ends in one of DTrace's faults, so does the clause: a string that is NULL is
an invalid address, text that does not fit is want of scratch space, a bad base is an illegal
operation (uts/common/dtrace/dtrace.c, dtrace_dif_subr()).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.codegen.firing import Firing, Lowered, Text
from kinst.codegen.helpers import json as subr_json
from kinst.codegen.helpers import memory as subr_memory
from kinst.codegen.helpers import more as subr_more
from kinst.codegen.helpers import text as subr_text
from kinst.codegen.ssa import Value, const
from kinst.codegen.values.builtins import bits_of
from kinst.core.dtypes import VoidType
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR, FAULT_ILLOP, FAULT_NOSCRATCH
from kinst.dlang import typed

_Args = Sequence[Lowered]


def present(firing: Firing, value: Lowered) -> Lowered:
    """The same value; a string that is NULL faults."""
    if isinstance(value, Text) and value.nullable:
        null = firing.code.icmp("eq", value.address, 0)
        firing.faults.add(firing.code, null, FAULT_BADADDR, const(0))
        return Text(value.address, value.bound)
    return value


def subroutine(firing: Firing, expr: typed.Subroutine, args: _Args) -> Lowered:
    """The value of a call; args: the arguments' values, in order.  A string may be NULL."""
    value = _LOWER[expr.name](firing, args)
    if isinstance(value, Text):
        return value
    if isinstance(expr.type, VoidType):
        return const(0)
    return firing.code.convert(value, bits_of(expr.type), typed.is_signed(expr.type))


def _string(firing: Firing, value: Lowered) -> tuple[Value, Value]:
    """(address, bound) of a string argument; no more than strsize bytes of it are looked at."""
    if not isinstance(value, Text):
        raise KinstError("a string was expected")
    return value.address, const(min(value.bound, firing.unit.layout.strsize))


def _wide(firing: Firing, value: Lowered, signed: bool = True) -> Value:
    number = value.address if isinstance(value, Text) else value
    return firing.code.convert(number, 64, signed)


def _room(firing: Firing) -> tuple[Value, Value, Text]:
    """(address, size, text) of room for a new string of strsize bytes."""
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    return room, const(size), Text(room, size)


def _strlen(firing: Firing, args: _Args) -> Lowered:
    helper = firing.unit.helper("length", subr_text.length)
    return firing.code.call(helper, _string(firing, args[0]))


def _find_byte(last: int) -> Callable[[Firing, _Args], Lowered]:
    def lower(firing: Firing, args: _Args) -> Lowered:
        wanted = firing.code.op("and", _wide(firing, args[1]), 0xFF)
        helper = firing.unit.helper("find_byte", subr_text.find_byte)
        string, bound = _string(firing, args[0])
        found = firing.code.call(helper, (string, bound, wanted, const(last)))
        return Text(found, firing.unit.layout.strsize, nullable=True)

    return lower


def _strstr(firing: Firing, args: _Args) -> Lowered:
    code = firing.code
    helper = firing.unit.helper("index", subr_text.index)
    string, bound = _string(firing, args[0])
    at = code.call(helper, (string, bound, *_string(firing, args[1]), const(0)))
    missing = code.icmp("slt", at, 0)
    found = code.select(missing, const(0), code.op("add", string, at))
    return Text(found, firing.unit.layout.strsize, nullable=True)


def _index(firing: Firing, args: _Args) -> Lowered:
    helper = firing.unit.helper("index", subr_text.index)
    start = _wide(firing, args[2]) if len(args) == 3 else const(0)
    words = (*_string(firing, args[0]), *_string(firing, args[1]), start)
    return firing.code.call(helper, words)


def _rindex(firing: Firing, args: _Args) -> Lowered:
    helper = firing.unit.helper("rindex", subr_text.rindex)
    start = _wide(firing, args[2]) if len(args) == 3 else const((1 << 63) - 1)
    words = (*_string(firing, args[0]), *_string(firing, args[1]), start)
    return firing.code.call(helper, words)


def _strjoin(firing: Firing, args: _Args) -> Lowered:
    code = firing.code
    dst, size, text = _room(firing)
    helper = firing.unit.helper("append", subr_text.append)
    at = const(0)
    for arg in args:
        at = code.call(helper, (dst, at, size, *_string(firing, arg)))
    firing.faults.add(code, code.icmp("eq", at, size), FAULT_NOSCRATCH, const(0))
    return text


def _substr(firing: Firing, args: _Args) -> Lowered:
    dst, size, text = _room(firing)
    count = _wide(firing, args[2]) if len(args) == 3 else size
    words = (dst, size, *_string(firing, args[0]), _wide(firing, args[1]), count)
    firing.code.call(firing.unit.helper("substr", subr_text.substr), words)
    return text


def _fold(first: str) -> Callable[[Firing, _Args], Lowered]:
    def lower(firing: Firing, args: _Args) -> Lowered:
        dst, size, text = _room(firing)
        helper = firing.unit.helper("fold_case", subr_text.fold_case)
        firing.code.call(helper, (dst, size, *_string(firing, args[0]), const(ord(first))))
        return text

    return lower


def _path(name: str) -> Callable[[Firing, _Args], Lowered]:
    write = {
        "basename": subr_text.basename,
        "dirname": subr_text.dirname,
        "cleanpath": subr_more.cleanpath,
    }[name]

    def lower(firing: Firing, args: _Args) -> Lowered:
        dst, size, text = _room(firing)
        firing.code.call(firing.unit.helper(name, write), (dst, size, *_string(firing, args[0])))
        return text

    return lower


def _base(firing: Firing, args: _Args) -> Value:
    """The second argument as a base; 10 where there is none."""
    if len(args) == 1:
        return const(10)
    code = firing.code
    base = _wide(firing, args[1])
    bad = code.icmp("ugt", code.op("sub", base, const(2)), 34)
    firing.faults.add(code, bad, FAULT_ILLOP, const(0))
    return base


def _lltostr(firing: Firing, args: _Args) -> Lowered:
    # Readers of the text may look as far as its bound behind its start.
    room = firing.text_room(2 * subr_more.LLTOSTR_ROOM)
    helper = firing.unit.helper("lltostr", subr_more.lltostr)
    words = (room, _wide(firing, args[0]), _base(firing, args))
    return Text(firing.code.call(helper, words), subr_more.LLTOSTR_ROOM)


def _strtoll(firing: Firing, args: _Args) -> Lowered:
    helper = firing.unit.helper("strtoll", subr_more.strtoll)
    words = (*_string(firing, args[0]), _base(firing, args))
    return firing.code.call(helper, words)


def _swapped(size: int) -> Callable[[Firing, _Args], Lowered]:
    """All of kinst's machines are little-endian."""

    def lower(firing: Firing, args: _Args) -> Lowered:
        code = firing.code
        value = _wide(firing, args[0], signed=False)
        result = const(0)
        for k in range(size):
            byte = code.op("and", code.op("lshr", value, 8 * k), 0xFF)
            result = code.op("or", result, code.op("shl", byte, 8 * (size - 1 - k)))
        return result

    return lower


def _device(shift: int, mask: int) -> Callable[[Firing, _Args], Lowered]:
    """A part of Linux' dev_t (include/linux/kdev_t.h: 12 and 20 bits)."""

    def lower(firing: Firing, args: _Args) -> Lowered:
        code = firing.code
        return code.op("and", code.op("lshr", _wide(firing, args[0]), shift), mask)

    return lower


def _json(firing: Firing, args: _Args) -> Lowered:
    code = firing.code
    dst, size, text = _room(firing)
    words = (dst, size, *_string(firing, args[0]), *_string(firing, args[1]))
    found = code.call(firing.unit.helper("json", subr_json.json), words)
    missing = code.icmp("eq", found, 0)
    return Text(code.select(missing, const(0), dst), text.bound, nullable=True)


_LOWER: dict[str, Callable[[Firing, _Args], Lowered]] = {
    "basename": _path("basename"),
    "cleanpath": _path("cleanpath"),
    "dirname": _path("dirname"),
    "getmajor": _device(20, 0xFFF),
    "getminor": _device(0, 0xFFFFF),
    "htonl": _swapped(4),
    "htonll": _swapped(8),
    "htons": _swapped(2),
    "index": _index,
    "json": _json,
    "lltostr": _lltostr,
    "ntohl": _swapped(4),
    "ntohll": _swapped(8),
    "ntohs": _swapped(2),
    "rindex": _rindex,
    "strchr": _find_byte(0),
    "strjoin": _strjoin,
    "strlen": _strlen,
    "strrchr": _find_byte(1),
    "strstr": _strstr,
    "strtoll": _strtoll,
    "substr": _substr,
    "tolower": _fold("A"),
    "toupper": _fold("a"),
    **subr_memory.LOWER,
}
