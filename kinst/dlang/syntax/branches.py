"""if and else, as clauses with predicates: what FreeBSD's libdtrace makes of them (dt_sugar.c).

A clause with an if becomes several, in the order of its statements.  this->%condition_N says
where control is: 1 in the first branch, 2 in the other one, 0 (what every firing begins with)
where the if was not reached.  this->%error is 1 while one of the parts runs, so that a fault in
one leaves out those after it.  No name of D has a % in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kinst.core.errors import Span
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.literals import read_integer

ERROR = "%error"
CONDITION = "%condition_"


@dataclass(slots=True)
class _Splitter:
    clause: tree.Clause
    next: int
    parts: list[tree.Clause] = field(default_factory=list)
    statements: list[tree.Expr] = field(default_factory=list)
    predicate: tree.Expr | None = None

    def block(self, statements: tuple[tree.Statement, ...], inside: tree.Expr) -> None:
        """The statements of one block, all of whose parts but the first run under `inside`."""
        for statement in statements:
            if not isinstance(statement, tree.If):
                self.statements.append(statement)
                continue
            number, span = self.next, statement.span
            self.next += 1
            choice = tree.Ternary(span, statement.condition, _number(1, span), _number(2, span))
            self.statements.append(_set(f"{CONDITION}{number}", choice, span))
            for which, branch in ((1, statement.then), (2, statement.otherwise)):
                if branch:
                    under = _is(number, which, span)
                    self.close(under)
                    self.block(branch, under)
            self.close(inside)

    def close(self, following: tree.Expr) -> None:
        """End the part being written, if it has statements; the next runs under `following`."""
        if self.statements:
            span = self.clause.span
            body = [_set(ERROR, _number(1, span), span), *self.statements]
            body.append(_set(ERROR, _number(0, span), span))
            self.parts.append(
                tree.Clause(span, self.clause.descriptions, self.predicate, tuple(body))
            )
        self.statements = []
        span = following.span
        fine = tree.Prefix(span, "!", _this(ERROR, span))
        self.predicate = tree.Infix(span, "&&", fine, following)


def split(clause: tree.Clause, statements: tuple[tree.Statement, ...]) -> list[tree.Clause]:
    """The clauses that stand for one whose statements have an if.  clause: without them.

    Other clauses of a probe use the same names, so they are set to 0 first: before the predicate
    is looked at, since what comes after must not run when it fails.
    """
    span = clause.span
    splitter = _Splitter(clause, 2, predicate=clause.predicate)
    splitter.statements.append(_set(f"{CONDITION}1", _number(1, span), span))
    inside = _is(1, 1, span)
    splitter.block(statements, inside)
    splitter.close(inside)
    resets = tuple(_set(f"{CONDITION}{n}", _number(0, span), span) for n in range(1, splitter.next))
    return [tree.Clause(span, clause.descriptions, None, resets), *splitter.parts]


def _number(value: int, span: Span) -> tree.Expr:
    return tree.Integer(span, read_integer(str(value), span), str(value))


def _this(name: str, span: Span) -> tree.Expr:
    return tree.Member(span, tree.Name(span, "this"), "->", name)


def _set(name: str, value: tree.Expr, span: Span) -> tree.Expr:
    return tree.Assignment(span, "=", _this(name, span), value)


def _is(number: int, which: int, span: Span) -> tree.Expr:
    return tree.Infix(span, "==", _this(f"{CONDITION}{number}", span), _number(which, span))
