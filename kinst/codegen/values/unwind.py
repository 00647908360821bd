"""The kernel's stack: in the target walked by the kernel's own unwinder (core/target.py
Unwinder), from registers as the trampoline saved them; on the host, kinst has walked it before
and put it behind the context (CONTEXT_STACK)."""

from __future__ import annotations

from kinst.codegen.firing import Firing, Unit
from kinst.codegen.helpers.flow import copy_words
from kinst.codegen.ssa import Function, Value, const
from kinst.codegen.values.builtins import context_word
from kinst.core.errors import KinstError
from kinst.core.layout import CONTEXT_STACK, SITE_PC
from kinst.core.target import Unwinder

WORD = 8
DEPTH = 512  # frames that stackdepth counts at most: more than a 16 KB stack can have


def stack_depth(firing: Firing) -> Value:
    """How many frames the kernel's stack has here."""
    if firing.unit.machine.host:
        return firing.code.load(64, context_word(firing, CONTEXT_STACK))
    return _unwind(firing, firing.text_room(DEPTH * WORD), DEPTH)


def kernel_stack(firing: Firing, to: Value, frames: int) -> None:
    """Store the first frames of the stack at an address, zeros behind."""
    code = firing.code
    size = const(frames * WORD)
    if firing.unit.machine.host:
        copy = firing.unit.helper("copy_words", _copy_words)
        code.call(copy, (to, context_word(firing, CONTEXT_STACK + 1), size))
        return
    code.call(clear_words_helper(firing.unit), (to, size))
    _unwind(firing, to, frames)


def _unwinder(firing: Firing) -> Unwinder:
    found = firing.unit.machine.unwinder
    if found is None:
        raise KinstError(
            "this kernel has no unwinder that clauses can call: there is no stack() in it",
            "-x plant=stop unwinds from outside",
        )
    return found


def _unwind(firing: Firing, to: Value, frames: int) -> Value:
    """Store at most `frames` frames; how many there were."""
    code, unwinder = firing.code, _unwinder(firing)
    slots = {r.d_name: r.slot for r in firing.unit.machine.registers}
    saved = firing.text_room(unwinder.size)
    room = const((unwinder.size + WORD - 1) & -WORD)
    code.call(clear_words_helper(firing.unit), (saved, room))
    for offset, value in unwinder.constants:
        code.store(const(value), code.add(saved, offset))
    for offset, name in unwinder.registers:
        if name:
            word = code.load(64, code.add(firing.frame, WORD * slots[name]))
        else:
            word = code.load(64, code.add(firing.site, SITE_PC))
        code.store(word, code.add(saved, offset))
    return code.call(firing.unit.helper("unwind", _call_unwinder), (saved, to, const(frames)))


def _call_unwinder(unit: Unit, name: str) -> Function:
    """unwind(saved registers, store, entries) -> frames stored; the C function, behind the
    convention that keeps registers."""
    assert unit.machine.unwinder is not None
    code = unit.function(name, 3)
    found = code.call_c(unit.machine.unwinder.address, (*code.params, const(0)))
    code.ret(code.op("and", found, 0xFFFFFFFF))
    return code


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


def _copy_words(unit: Unit, name: str) -> Function:
    """copy_words(dst, src, size): size being a multiple of 8."""
    code = unit.function(name, 3, 0)
    dst, src, size = code.params
    copy_words(code, code.local(64), dst, src, size)
    code.ret()
    return code
