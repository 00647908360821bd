"""Small changes of Python code (mutants): the nodes of the syntax tree that can be changed, and the
changed code.

A change is made in the syntax tree, so no source file is written. Code for people and type checkers
is not changed: messages, docstrings, assertions, annotations, decorators.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE,),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE,),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one node of a syntax tree.

    Attributes:
        path: path of the source file.
        number: number of the mutant in the file.
        line: line of the node, from 1.
        inside: name of the function that contains the node.
        before: text of the node.
        after: text of the changed node.
        lines: first and last line of the node's statement; for a statement with a body, of the part
            before the body.
        function: name and first line of the outermost function that contains the node; ("", 0) for
            code that runs at import.
        same: number of the mutant, from 1, among the mutants of the function with the same text, in
            the order of the source.
    """

    path: str
    number: int
    line: int
    inside: str
    before: str
    after: str
    lines: tuple[int, int]
    function: tuple[str, int]
    same: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.inside}: {self.before}  ->  {self.after}"


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a node in the syntax tree.

    Attributes:
        parent: the node's parent.
        field: field of the parent that contains the node.
        index: index in the field, if the field is a list.
        inside: name of the function that contains the node.
        lines: first and last line of the node's statement (Mutant.lines).
        function: name and first line of the outermost function that contains the node
            (Mutant.function).
    """

    parent: ast.AST
    field: str
    index: int | None
    inside: str
    lines: tuple[int, int]
    function: tuple[str, int]

    @property
    def node(self) -> Any:
        value = getattr(self.parent, self.field)
        return value if self.index is None else value[self.index]

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def mutants(source: str, path: str) -> list[Mutant]:
    """Return all mutants of a source text, in an order that depends only on the text."""
    changes, alike = [], Counter[tuple[str, str, str]]()
    for number, (place, changed) in enumerate(_changes(ast.parse(source))):
        before, after = _short(place.node), _short(changed)
        alike[place.inside, before, after] += 1
        changes.append(
            Mutant(
                path,
                number,
                place.node.lineno,
                place.inside,
                before,
                after,
                place.lines,
                place.function,
                alike[place.inside, before, after],
            )
        )
    return changes


def mutated(source: str, mutant: Mutant, filename: str) -> CodeType:
    """Return the compiled code of a source text with one change."""
    tree = ast.parse(source)
    for number, (place, changed) in enumerate(_changes(tree)):
        if number == mutant.number:
            place.put(ast.copy_location(changed, place.node))
            break
    return compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)


def _short(node: ast.AST) -> str:
    """Return the text of a node in one line; of a statement with a body, only the part before the
    body."""
    return ast.unparse(node).partition("\n")[0]


def _changes(tree: ast.Module) -> Iterator[tuple[_Place, ast.AST]]:
    for place in _positions(tree, "<module>"):
        for changed in _changed(place.node):
            yield place, changed


_TOP = ("", 0)


def _positions(
    parent: ast.AST,
    inside: str,
    lines: tuple[int, int] = (1, 1),
    function: tuple[str, int] = _TOP,
) -> Iterator[_Place]:
    """Yield every position in a tree whose node may be changed, outer nodes before inner ones."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(node, ast.AST) or _is_not_executed(node, parent):
                continue
            name, spans, of = inside, lines, function
            if isinstance(node, (ast.stmt, ast.excepthandler)):
                spans = _head(node)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                name = node.name if inside == "<module>" else f"{inside}.{node.name}"
                if isinstance(node, ast.FunctionDef) and of == _TOP:
                    of = (name, min([node.lineno, *(d.lineno for d in node.decorator_list)]))
            if isinstance(parent, ast.FunctionDef) and field == "args" and of[0] == inside:
                of = _TOP  # defaults of parameters are evaluated at import
            yield _Place(parent, field, index, name, spans, of)
            yield from _positions(node, name, spans, of)


def _head(node: ast.stmt | ast.excepthandler) -> tuple[int, int]:
    """Return the first and last line of a statement without its body."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        return node.lineno, max(node.lineno, body[0].lineno - 1)
    return node.lineno, node.end_lineno or node.lineno


def _is_not_executed(node: ast.AST, parent: ast.AST) -> bool:
    """Return whether a node is a message, a docstring, an import, or code for type checkers, which
    are not changed."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(parent, ast.Raise):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("cast", "TypeVar")
    return isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may replace a node."""
    match node:
        case ast.Compare(ops=[only]):
            for operator in _COMPARED[type(only)]:
                yield _with(node, ops=[operator()])
        case ast.BinOp(op=op) if type(op) in _CALCULATED and not _text(node):
            yield _with(node, op=_CALCULATED[type(op)]())
        case ast.AugAssign(op=op) if type(op) in _CALCULATED:
            yield _with(node, op=_CALCULATED[type(op)]())
            yield ast.Pass()
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.And() if isinstance(op, ast.Or) else ast.Or())
            for index in range(len(node.values)):
                left = [value for i, value in enumerate(node.values) if i != index]
                yield left[0] if len(left) == 1 else _with(node, values=left)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1 if value else -1)
        case ast.Constant(value=str(value)) if value and " " not in value:
            yield ast.Constant(f"{value}X")
        case ast.Constant(value=bytes(value)) if value:
            yield ast.Constant(value + b"X")
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.AST() as value):
            none = isinstance(value, ast.Constant) and value.value is None
            yield ast.Return(ast.Constant(1 if none else None))
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield ast.Pass()
        case ast.Raise():
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
            yield ast.Pass()


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    """Return a copy of a node with some fields replaced."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _text(node: ast.BinOp) -> bool:
    """Return whether a node concatenates strings."""
    parts = (node.left, node.right)
    return any(
        isinstance(p, ast.JoinedStr) or (isinstance(p, ast.Constant) and isinstance(p.value, str))
        for p in parts
    )
