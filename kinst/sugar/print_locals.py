"""print(locals): prints each local variable of the functions around an instruction.

Tested by tests/sugar/test_locals.py and tests/vm/language/test_locals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kinst.core.errors import Span
from kinst.dlang.syntax import tree

LOCALS = "locals"


def is_whole(node: object) -> bool:
    """Whether a statement is print(locals)."""
    return (
        isinstance(node, tree.CallNode)
        and isinstance(node.function, tree.NameNode)
        and node.function.name == "print"
        and len(node.arguments) == 1
        and isinstance(node.arguments[0], tree.NameNode)
        and node.arguments[0].name == LOCALS
    )


def printed(
    clause: tree.ClauseNode, names: Callable[[], Sequence[str]], missing: Callable[[str, Span], str]
) -> tree.ClauseNode:
    """Replace print(locals) in a clause by a print() of each variable.

    Args:
        names: the names of the variables.
        missing: returns the reason why a variable cannot be read, which is printed instead; or "".
    """
    statements = list[tree.ExprNode]()
    for statement in clause.statements:
        if is_whole(statement):
            statements += _each(statement.span, names(), missing)
        else:
            statements.append(statement)
    return replace(clause, statements=tuple(statements))


def stand_in(span: Span) -> tree.ExprNode:
    """Return a statement for print(locals) while the instructions are not known yet."""
    return _text(span, LOCALS)


def _each(
    span: Span, names: Sequence[str], missing: Callable[[str, Span], str]
) -> Iterator[tree.ExprNode]:
    for name in names:
        why = missing(name, span)
        yield _text(span, f"{name}: {why}\n" if why else f"{name} = ")
        if not why:
            variable = tree.MemberNode(span, tree.NameNode(span, LOCALS), "->", name)
            yield tree.CallNode(span, tree.NameNode(span, "print"), (variable,))
    if not names:
        yield _text(span, "there are no local variables\n")


def _text(span: Span, text: str) -> tree.ExprNode:
    literal = tree.StringNode(span, text.replace("%", "%%").encode())
    return tree.CallNode(span, tree.NameNode(span, "printf"), (literal,))
