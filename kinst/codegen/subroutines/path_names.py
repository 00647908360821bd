"""Subroutines on paths as text: basename(), dirname() and cleanpath().  (helpers/paths.py makes the
paths of the kernel's files.)

Tested by tests/codegen/subroutines/test_subroutines.py and tests/codegen/helpers.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.firing import Firing, Lowered, Unit
from kinst.codegen.helpers.branching import (
    both,
    byte_in,
    byte_of,
    copy_bytes,
    either,
    least,
    loop,
    put,
    step,
    when,
)
from kinst.codegen.ssa import IrFunction, IrLocal, IrValue, const
from kinst.codegen.subroutines.arguments import DOT, SLASH, Args, new_text, subroutine, text_words
from kinst.codegen.subroutines.strings import write_length

_Write = Callable[[Unit, str], IrFunction]
# States of cleanpath(): the path that was read so far ends in a plain character, "/", "/.", "/..".
_PLAIN, _SLASH, _SLASH_DOT, _SLASH_DOTS = range(4)


class _Cleaner:
    """Generator of cleanpath()'s loop, a state machine. The state says which characters were read
    last and are not stored yet: none, "/", "/." or "/..".
    """

    def __init__(self, code: IrFunction, dst: IrValue, string: IrValue, bound: IrValue) -> None:
        self.code, self.dst, self.string, self.bound = code, dst, string, bound
        self.source, self.at, self.state = code.local(64), code.local(64), code.local(64)
        self.byte = code.local(64, 1)

    def becomes(self, new: int) -> Callable[[], None]:
        return lambda: self.code.set(self.state, const(new))

    def keep(self, dots: int) -> None:
        """Emit LLVM IR that stores a slash, `dots` dots and the current byte, and goes to the state
        _PLAIN, in which no character waits to be stored.
        """
        for held in (SLASH, *[DOT] * dots):
            put(self.code, self.at, const(held), self.dst)
        put(self.code, self.at, self.code.get(self.byte), self.dst)
        self.code.set(self.state, const(_PLAIN))

    def up(self) -> None:
        """Emit LLVM IR that moves the end of the stored path back to the slash before its last
        component, so that the next component overwrites the last one.
        """
        code, at = self.code, self.at
        going = code.local(64)
        code.set(going, const(1))

        def back() -> None:
            step(code, at, -1)
            at_slash = code.icmp("eq", byte_of(code, self.dst, code.get(at)), SLASH)
            code.set(going, code.select(at_slash, const(0), const(1)))

        def more() -> IrValue:
            inside, looking = code.icmp("ne", code.get(at), 0), code.icmp("ne", code.get(going), 0)
            return both(code, inside, looking)

        loop(code, more, back)
        code.set(self.state, const(_SLASH))
        when(code, self.is_byte(0), lambda: step(code, at))

    def is_byte(self, value: int) -> IrValue:
        return self.code.icmp("eq", self.code.get(self.byte), value)

    def is_state(self, value: int) -> IrValue:
        return self.code.icmp("eq", self.code.get(self.state), value)

    def after_slash(self) -> None:
        self._slash_dot_or(_SLASH_DOT, lambda: self.keep(0))

    def after_dot(self) -> None:
        self._slash_dot_or(_SLASH_DOTS, lambda: self.keep(1))

    def _slash_dot_or(self, dot: int, other: Callable[[], None]) -> None:
        """Emit LLVM IR that handles the byte after "/" or "/.".

        Args:
            dot: the state after a dot.
            other: emits the handling of a byte that is neither a slash nor a dot.
        """
        when(
            self.code, self.is_byte(SLASH), self.becomes(_SLASH),
            lambda: when(self.code, self.is_byte(DOT), self.becomes(dot), other),
        )  # fmt: skip

    def after_dots(self) -> None:
        ends = either(self.code, self.is_byte(SLASH), self.is_byte(0))
        when(self.code, ends, self.up, lambda: self.keep(2))

    def plain(self) -> None:
        code = self.code
        when(
            code, self.is_byte(SLASH), self.becomes(_SLASH),
            lambda: put(code, self.at, code.get(self.byte), self.dst),
        )  # fmt: skip

    def one(self) -> None:
        """Emit LLVM IR that reads and handles the next byte of the path."""
        code = self.code
        code.set(self.byte, byte_in(code, self.string, code.get(self.source), self.bound))
        step(code, self.source)
        when(
            code, self.is_state(_PLAIN), self.plain,
            lambda: when(
                code, self.is_state(_SLASH), self.after_slash,
                lambda: when(code, self.is_state(_SLASH_DOT), self.after_dot, self.after_dots),
            ),
        )  # fmt: skip


def _write_cleanpath(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function cleanpath(dst, size, string, bound), which stores a path without
    "//", "/./" and "dir/../".  It does not follow symbolic links, and stops 5 bytes before the end
    of dst.
    """
    code = unit.function(name, 4, 0)
    dst, size, string, bound = code.params
    limit = code.op("sub", size, const(5))
    path = _Cleaner(code, dst, string, bound)

    def more() -> IrValue:
        room = code.icmp("slt", code.get(path.at), limit)
        return both(code, code.icmp("ne", code.get(path.byte), 0), room)

    loop(code, more, path.one)
    put(code, path.at, const(0), dst)
    code.ret()
    return code


def _write_basename(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function basename(dst, size, string, bound), which stores what basename(1)
    prints.
    """
    code = unit.function(name, 4, 0)
    dst, size, string, bound = code.params
    end, start = _last_part(unit, code, string, bound)
    whole = code.call(unit.helper("length", write_length), (string, bound))
    # The basename of slashes alone is "/", and the basename of "" is ".".
    only = code.icmp("eq", end, 0)
    at = code.local(64)
    count = least(code, code.op("sub", end, start), code.op("sub", size, const(1)))
    source = code.op("add", string, start)
    copy_bytes(code, at, dst, source, count)
    empty = code.icmp("eq", whole, 0)
    single = code.select(empty, const(DOT), const(SLASH))
    when(code, only, lambda: put(code, at, single, dst))
    put(code, at, const(0), dst)
    code.ret()
    return code


def _last_part(
    unit: Unit, code: IrFunction, string: IrValue, bound: IrValue
) -> tuple[IrValue, IrValue]:
    """Emit LLVM IR that finds a path's last component; return two indexes: the one after the
    component, and the one of the component's first byte. Both are 0 if the path has no component.
    """
    at = code.local(64)
    code.set(at, code.call(unit.helper("length", write_length), (string, bound)))
    _back(code, at, string, slashes=True)
    end = code.get(at)
    _back(code, at, string, slashes=False)
    return end, code.get(at)


def _back(code: IrFunction, at: IrLocal, string: IrValue, slashes: bool) -> None:
    """Emit a loop that decrements the variable `at` while the byte before it is a slash
    (slashes=True) or while it is any other byte (slashes=False).
    """

    def more() -> IrValue:
        here = code.get(at)
        before = code.op("sub", here, const(1))
        byte = byte_in(code, string, before, here)
        fits = code.icmp("eq" if slashes else "ne", byte, SLASH)
        return both(code, fits, code.icmp("ne", here, 0))

    loop(code, more, lambda: step(code, at, -1))


def _write_dirname(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function dirname(dst, size, string, bound), which stores what dirname(1)
    prints.
    """
    code = unit.function(name, 4, 0)
    dst, _, string, bound = code.params
    at = code.local(64)
    code.set(at, code.call(unit.helper("length", write_length), (string, bound)))
    rooted = code.icmp("eq", byte_in(code, string, const(0), bound), SLASH)
    for slashes in (True, False, True):
        _back(code, at, string, slashes)
    end = code.get(at)  # excludes a slash and a component, so there is room for the NUL
    to = code.local(64)
    copy_bytes(code, to, dst, string, end)
    single = code.select(rooted, const(SLASH), const(DOT))
    when(code, code.icmp("eq", end, 0), lambda: put(code, to, single, dst))
    put(code, to, const(0), dst)
    code.ret()
    return code


def _make_path(firing: Firing, args: Args, name: str, write: _Write) -> Lowered:
    dst, size, text = new_text(firing)
    firing.code.call(firing.unit.helper(name, write), (dst, size, *text_words(firing, args[0])))
    return text


@subroutine("string basename(const char *)")
def basename(firing: Firing, args: Args) -> Lowered:
    return _make_path(firing, args, "basename", _write_basename)


@subroutine("string dirname(const char *)")
def dirname(firing: Firing, args: Args) -> Lowered:
    return _make_path(firing, args, "dirname", _write_dirname)


@subroutine("string cleanpath(const char *)")
def cleanpath(firing: Firing, args: Args) -> Lowered:
    return _make_path(firing, args, "cleanpath", _write_cleanpath)
