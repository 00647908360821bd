"""Prints a syntax tree as D, in the layout of dtrace -d: one description a line, statements
indented by a tab (shared/seeds/status-report-2023q1.txt)."""

from __future__ import annotations

from kinst.core.dtypes import PointerType, spelled
from kinst.dlang import tree
from kinst.dlang.exprparser import ASSIGN, COMMA, INFIX, POSTFIX_STRENGTH, PREFIX_STRENGTH, TERNARY
from kinst.dlang.literals import escape

_PRIMARY = POSTFIX_STRENGTH + 1


def unparse(program: tree.Program) -> str:
    """D text that parses to the same tree (spans apart)."""
    blocks: list[str] = []
    plain: list[str] = []
    for item in program.items:
        if isinstance(item, tree.Clause):
            if plain:
                blocks.append("".join(plain))
                plain = []
            blocks.append(unparse_clause(item))
        elif isinstance(item, tree.Declaration):
            plain.append(_declaration(item))
        elif isinstance(item, tree.Inline):
            plain.append(_inline(item))
        elif isinstance(item, tree.Translator):
            plain.append(_translator(item))
        elif isinstance(item, tree.Option):
            value = f"={item.value}" if item.value else ""
            plain.append(f"#pragma D option {item.name}{value}\n")
    return "\n".join([*blocks, *(["".join(plain)] if plain else [])])


def _named(type_: tree.TypeName, name: str) -> str:
    return f"{_type(type_)}{'' if type_.stars else ' '}{name}"


def _declaration(item: tree.Declaration) -> str:
    text = f"{item.scope} {_named(item.type, item.name)}".lstrip()
    if item.keys is not None:
        text += f"[{', '.join(_type(key) for key in item.keys)}]"
    elif item.length is not None:
        text += f"[{unparse_expression(item.length)}]"
    return text + ";\n"


def _inline(item: tree.Inline) -> str:
    text = f"inline {_named(item.type, item.name)}"
    if item.parameters is not None:
        text += f"[{', '.join(_named(p.type, p.name) for p in item.parameters)}]"
    return f"{text} = {unparse_expression(item.value)};\n"


def _translator(item: tree.Translator) -> str:
    lines = [f"\t{one.name} = {_expr(one.value, ASSIGN)};\n" for one in item.members]
    source = _named(item.source, item.parameter)
    return f"translator {_type(item.type)} < {source} > {{\n{''.join(lines)}}};\n"


def unparse_clause(clause: tree.Clause) -> str:
    """One clause, ending in a newline."""
    lines = [",\n".join(str(d.pattern) for d in clause.descriptions)]
    if clause.predicate is not None:
        lines.append(f"/{_predicate(clause.predicate)}/")
    lines.append("{")
    lines += [f"\t{unparse_expression(s)};" for s in clause.statements]
    return "\n".join([*lines, "}\n"])


def _predicate(expr: tree.Expr) -> str:
    """/*p/ would begin a comment, and a / before { ; or / would end the predicate."""
    text = unparse_expression(expr)
    return f" {text}" if text.startswith("*") else text


def unparse_expression(expr: tree.Expr) -> str:
    return _expr(expr, COMMA)


def _expr(expr: tree.Expr, strength: int) -> str:
    """expr, in parentheses if its own operator binds weaker than `strength`."""
    text, own = _with_strength(expr)
    return f"({text})" if own < strength else text


def _with_strength(expr: tree.Expr) -> tuple[str, int]:
    match expr:
        case tree.Integer():
            return expr.text, _PRIMARY
        case tree.String():
            return f'"{escape(expr.value)}"', _PRIMARY
        case tree.Name():
            return expr.name, _PRIMARY
        case tree.Aggregation():
            return f"@{expr.name}", _PRIMARY
        case tree.Index():
            return f"{_expr(expr.base, POSTFIX_STRENGTH)}[{_list(expr.arguments)}]", _PRIMARY
        case tree.Call():
            return f"{_expr(expr.function, POSTFIX_STRENGTH)}({_list(expr.arguments)})", _PRIMARY
        case tree.Member():
            return f"{_expr(expr.base, POSTFIX_STRENGTH)}{expr.op}{expr.name}", POSTFIX_STRENGTH
        case tree.Postfix():
            return f"{_expr(expr.operand, POSTFIX_STRENGTH)}{expr.op}", POSTFIX_STRENGTH
        case tree.Prefix():
            return _prefix(expr), PREFIX_STRENGTH
        case tree.CastTo():
            return f"({_type(expr.type)}){_expr(expr.operand, PREFIX_STRENGTH)}", PREFIX_STRENGTH
        case tree.Typed():
            shown = spelled(PointerType(expr.type) if expr.pointer else expr.type)
            return f"({shown}){_expr(expr.operand, PREFIX_STRENGTH)}", PREFIX_STRENGTH
        case tree.SizeofType():
            return f"sizeof ({_type(expr.type)})", PREFIX_STRENGTH
        case tree.OffsetOf():
            return f"offsetof({_type(expr.type)}, {expr.member})", _PRIMARY
        case tree.Xlate():
            operand = unparse_expression(expr.operand)
            return f"xlate < {_type(expr.type)} > ({operand})", _PRIMARY
        case tree.Infix():
            return _infix(expr), INFIX[expr.op]
        case tree.Assignment():
            left = _expr(expr.left, TERNARY + 1)
            return f"{left} {expr.op} {_expr(expr.right, ASSIGN)}", ASSIGN
        case tree.Ternary():
            condition = _expr(expr.condition, TERNARY + 1)
            then, otherwise = _expr(expr.then, COMMA), _expr(expr.otherwise, TERNARY)
            return f"{condition} ? {then} : {otherwise}", TERNARY
    raise AssertionError(f"no D text for {type(expr).__name__}")


def _prefix(expr: tree.Prefix) -> str:
    operand = _expr(expr.operand, PREFIX_STRENGTH)
    if expr.op.isalpha():
        return f"{expr.op} ({unparse_expression(expr.operand)})"
    # - -x and & &x are not --x and &&x.
    return f"{expr.op} {operand}" if operand[0] == expr.op[0] else f"{expr.op}{operand}"


def _infix(expr: tree.Infix) -> str:
    strength = INFIX[expr.op]
    left, right = _expr(expr.left, strength), _expr(expr.right, strength + 1)
    if expr.op == ",":
        return f"{left}, {right}"
    return f"{left} {expr.op} {right}"


def _list(arguments: tuple[tree.Expr, ...]) -> str:
    return ", ".join(_expr(a, ASSIGN) for a in arguments)


def _type(name: tree.TypeName) -> str:
    return " ".join(name.words) + (" " + "*" * name.stars if name.stars else "")
