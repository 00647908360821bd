"""stack(), sym(), tracemem(), speculate() and the like: what they record, stored
straight into a record or a key."""

from __future__ import annotations

from kinst.codegen.firing import Firing
from kinst.codegen.ssa import Value
from kinst.codegen.values.expressions import scalar
from kinst.codegen.values.memory import load_bytes
from kinst.codegen.values.speculations import about
from kinst.codegen.values.unwind import WORD, kernel_stack
from kinst.codegen.values.user import store_process, user_stack
from kinst.core.dtypes import USER_WORDS, DumpType, StackType, SymbolType
from kinst.dlang import typed


def store_data(firing: Firing, expr: typed.Expr, to: Value) -> bool:
    """Store such an expression at an address; False for any other expression."""
    if isinstance(expr, typed.Symbol):
        assert isinstance(expr.type, SymbolType)
        at = to
        if expr.type.user:
            store_process(firing, to)
            at = firing.code.add(to, USER_WORDS * WORD)
        firing.code.store(firing.code.convert(scalar(firing, expr.address), 64, False), at)
        return True
    if isinstance(expr, typed.Speculation):
        identifier = firing.code.convert(scalar(firing, expr.id), 64, signed=False)
        firing.code.store(about(firing, expr.name, identifier), to)
        return True
    if isinstance(expr, typed.Memory):
        assert isinstance(expr.type, DumpType)
        address = firing.code.convert(scalar(firing, expr.address), 64, signed=False)
        load_bytes(firing, address, to, expr.type.size)
        return True
    if isinstance(expr, typed.Stack):
        assert isinstance(expr.type, StackType)
        if expr.type.user:
            user_stack(firing, to, expr.type.frames)
        else:
            kernel_stack(firing, to, expr.type.frames)
        return True
    return False
