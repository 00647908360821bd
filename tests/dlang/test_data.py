"""stack(), ustack(), sym() and the like: types and errors (libdtrace's dt_cc.c)."""

from __future__ import annotations

import pytest

from kinst.core.dtypes import StackType, SymbolType
from tests.dlang.dhelp import actions, compile_, error, typed


def test_stacks_have_the_options_size_or_their_own() -> None:
    one, two, three = actions("stack(); stack(3); ustack(5, 0);")
    assert isinstance(one, typed.TraceAction) and one.expr.type == StackType(20)
    assert isinstance(two, typed.TraceAction) and two.expr.type == StackType(3)
    assert isinstance(three, typed.TraceAction) and three.expr.type == StackType(5, True)
    assert three.expr.type.size == 8 * (6 + 5)  # six words about the process, then five frames


def test_symbols() -> None:
    for name in ("sym", "func", "mod", "uaddr", "usym", "ufunc", "umod"):
        (action,) = actions(f"{name}(caller);")
        assert isinstance(action, typed.TraceAction) and action.expr.type == SymbolType(name)


def test_as_keys() -> None:
    program = compile_("BEGIN { @a[stack(2), sym(caller), pid] = count(); }")
    assert program.aggregations[0].keys[:2] == (StackType(2), SymbolType("sym"))


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("stack(1, 2);", "D_STACK_PROTO"),
        ("stack(0);", "D_STACK_SIZE"),
        ("stack(-1);", "D_STACK_SIZE"),
        ("stack(pid);", "D_STACK_SIZE"),
        ("ustack(1, 2, 3);", "D_USTACK_PROTO"),
        ("ustack(0);", "D_USTACK_FRAMES"),
        ("ustack(1, pid);", "D_USTACK_STRSIZE"),
        ("sym();", "D_PROTO_LEN"),
        ("func(1, 2);", "D_PROTO_LEN"),
        ('mod("x");', "D_PROTO_ARG"),
        ("trace(stack());", "D_CG_EXPR"),
        ("@[stack(1)] = count(); @[stack(2)] = count();", "D_PROTO_ARG"),
        ('@[pid] = count(); printa("%k", @);', "D_PRINTF_ARG_TYPE"),
    ],
)
def test_errors(text: str, tag: str) -> None:
    assert error(f"BEGIN {{ {text} }}").tag == tag
