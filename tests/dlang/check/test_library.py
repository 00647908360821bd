"""D libraries of systems: found without parsing, declared only as far as a program uses them."""

from __future__ import annotations

import dataclasses

import pytest

from kinst.core.dialect import Dialect, Library
from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.api import Environment, Macros, compile_text, parse_text
from kinst.dlang.check.library import declared_names, declared_types
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.lexer import own_numbers
from kinst.systems import kinds, of_host

BASE = Library(
    "base.d",
    """
enum colour { RED = 3, GREEN };
typedef struct point {
    int x; int y;
    struct { int z; } inner;
} point_t;
inline int UNIT = 10;
""",
)
MORE = Library(
    "more.d",
    """
#pragma D depends_on library base.d
typedef int size2_t;
typedef struct line { point_t from; int length; } line_t;
translator line_t < int N > { length = N * UNIT; };
inline line_t *ten = xlate < line_t * > (10);
inline int grown[int by] = by + UNIT;
inline int broken = nowhere + 1;
""",
)


def dialect(*libraries: Library) -> Dialect:
    return Dialect(system="toy", libraries=libraries)


def value(expression: str, of: Dialect, before: str = "") -> typed.Expr:
    text = f"{before} BEGIN {{ trace({expression}); }}"
    action = (
        compile_text(text, "t.d", None, Environment(dialect=lambda: of))[1].clauses[0].actions[0]
    )
    assert isinstance(action, typed.TraceAction)
    return action.expr


def error(expression: str, of: Dialect) -> DError:
    with pytest.raises(DError) as found:
        value(expression, of)
    return found.value


@pytest.mark.parametrize(
    "library",
    [BASE, MORE, *(one for kind in kinds() for one in kind.dialect().libraries)],
    ids=lambda library: library.name,
)
def test_names_are_found_as_the_parser_finds_them(library: Library) -> None:
    types = declared_types(library)
    macros = Macros(variables=own_numbers())
    program = parse_text(
        library.text, library.name, macros, part=True, knows_type=types.__contains__
    )
    declared: set[str] = set()
    for item in program.items:
        if isinstance(item, tree.InlineNode):
            declared.add(item.name)
        elif isinstance(item, tree.TypeDeclarationNode):
            body = item.type.body
            declared |= {item.name, body.tag if body else ""}
            if isinstance(body, tree.EnumBodyNode):
                declared.update(one.name for one in body.enumerators)
    assert declared_names(library) == declared - {""}
    assert types == {
        item.name for item in program.items if isinstance(item, tree.TypeDeclarationNode)
    } - {""}


@pytest.mark.parametrize("order", [(BASE, MORE), (MORE, BASE)])
def test_a_library_is_declared_after_those_that_it_depends_on(order: tuple[Library, ...]) -> None:
    assert str(value("ten->length", dialect(*order)).type) == "int"
    assert str(value("grown[2]", dialect(*order)).type) == "int"
    assert str(value("sizeof(line_t)", dialect(*order)).type) == "size_t"


def test_what_is_not_used_is_not_checked() -> None:
    of = dialect(BASE, MORE)
    assert str(value("UNIT", of).type) == "int"
    assert isinstance(value("GREEN", of), typed.IntConst)
    assert "nowhere" in error("broken", of).message


def test_a_library_that_is_missing_is_named() -> None:
    found = error("ten->length", dialect(MORE))
    assert found.tag == "D_PRAGMA_DEPEND"
    assert found.message == "library more.d requires library base.d, which does not exist"


def test_the_program_s_own_declarations_go_before() -> None:
    own = "inline int UNIT = 3; typedef struct point { long far; } point_t;"
    found = value("sizeof(point_t)", dialect(BASE), own)
    assert isinstance(found, typed.IntConst) and found.value == 8
    assert str(value("UNIT", dialect(BASE), own).type) == "int"


def test_an_unknown_system_has_no_constants_and_says_so() -> None:
    known, unknown = of_host().dialect(), Dialect()
    assert isinstance(value("ENOENT", known), typed.IntConst)
    found = error("ENOENT", unknown)
    assert found.tag == "D_IDENT_UNDEF"
    assert found.hint == "a constant of a system needs one that kinst knows"
    assert isinstance(value("DTRACEFLT_BADADDR", unknown), typed.IntConst)
    assert error("curpsinfo->pr_pid", unknown).tag == "D_IDENT_UNDEF"


def test_errno_is_the_thread_s_unless_functions_return_it() -> None:
    own = dataclasses.replace(of_host().dialect(), most_error=0)
    found = value("errno", own)
    assert isinstance(found, typed.Builtin) and found.name == "errno"
    assert "Linux keeps none in the thread" in error("errno", of_host().dialect()).message
