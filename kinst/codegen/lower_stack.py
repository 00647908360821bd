"""stack(), sym(), tracemem(), speculate() and the like: what they record, stored
straight into a record or a key."""

from __future__ import annotations

from kinst.codegen.firing import Firing
from kinst.codegen.lower_builtins import builtin
from kinst.codegen.lower_expr import scalar
from kinst.codegen.lower_memory import load_bytes
from kinst.codegen.lower_speculation import about
from kinst.codegen.lower_unwind import WORD, kernel_stack
from kinst.codegen.ssa import Value
from kinst.core.dtypes import UINT64, DumpType, StackType, SymbolType
from kinst.core.errors import KinstError
from kinst.dlang import typed


def store_data(firing: Firing, expr: typed.Expr, to: Value) -> bool:
    """Store such an expression at an address; False for any other expression."""
    if isinstance(expr, typed.Symbol):
        assert isinstance(expr.type, SymbolType)
        at = to
        if expr.type.user:
            firing.code.store(_pid(firing), at)
            at = firing.code.add(to, WORD)
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
            raise KinstError(f"{expr.span}: ustack() is not supported yet")
        kernel_stack(firing, to, expr.type.frames)
        return True
    return False


def _pid(firing: Firing) -> Value:
    value = builtin(firing, "pid", UINT64)
    assert isinstance(value, Value)
    return value
