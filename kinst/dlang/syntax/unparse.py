"""Conversion of a syntax tree to D text, in the layout of dtrace -d: one description a line,
statements indented by a tab (example: FreeBSD's status report of 2023Q1, "kinst").
"""

from __future__ import annotations

from kinst.core.dtypes import PointerType, spelled
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.expression_parser import (
    ASSIGN,
    COMMA,
    INFIX,
    POSTFIX_STRENGTH,
    PREFIX_STRENGTH,
    TERNARY,
)
from kinst.dlang.syntax.source import escape

_PRIMARY = POSTFIX_STRENGTH + 1


def unparse(program: tree.ProgramNode) -> str:
    """Return D text that parses to the same tree, apart from spans.

    If the parser has split a clause with an if (program_parser.py), the text has names with a %,
    which do not parse.
    """
    blocks: list[str] = []
    plain: list[str] = []
    items = list(program.items)
    while items:
        if isinstance(items[0], tree.ClauseNode):
            if plain:
                blocks.append("".join(plain))
                plain = []
            blocks.append(unparse_clause(items[0]))
            items = items[1:]
            continue
        alike = items[: _declared_together(items)]
        plain.append(_plain(alike))
        items = items[len(alike) :]
    return "\n".join([*blocks, *(["".join(plain)] if plain else [])])


def _declared_together(items: list[tree.ItemNode]) -> int:
    """Return how many of the items, counted from the first, D text must write as one declaration.
    The number is above 1 for a structure without a tag and the names that are declared with it:
    `struct { ... } a, b;`.
    """
    first = items[0]
    if not isinstance(first, tree.TypeDeclarationNode) or first.name or not first.type.body:
        return 1
    count = 1
    for item in items[1:]:
        typed = isinstance(item, tree.TypeDeclarationNode | tree.DeclarationNode | tree.InlineNode)
        if not typed or item.type.body is not first.type.body:  # type: ignore[attr-defined]
            break
        count += 1
    return count


def _plain(items: list[tree.ItemNode]) -> str:
    """Return the text of an item that is not a clause.

    Args:
        items: the item, or all items that come from one declaration.
    """
    item, last = items[0], items[-1]
    if isinstance(item, tree.OptionNode):
        return f"#pragma D option {item.name}{f'={item.value}' if item.value else ''}\n"
    if isinstance(item, tree.PragmaNode):
        return f"#pragma D {' '.join((item.kind, *item.words))}\n"
    if isinstance(item, tree.TypeDeclarationNode) and not item.name and last is item:
        return f"{_base(item.type)};\n"
    if isinstance(last, tree.InlineNode):
        return _inline(last)
    if isinstance(last, tree.TranslatorNode):
        return _translator(last)
    if isinstance(last, tree.ProviderNode):
        return _provider(last)
    named = items[1:] if len(items) > 1 else items
    if isinstance(last, tree.TypeDeclarationNode):
        head = "typedef "
        names = [
            _declarator(i.type, i.name) for i in named if isinstance(i, tree.TypeDeclarationNode)
        ]
        return f"{head}{_spaced(_base(last.type), ', '.join(names))};\n"
    assert isinstance(last, tree.DeclarationNode)
    names = [_variable(i) for i in named if isinstance(i, tree.DeclarationNode)]
    return f"{last.scope} {_spaced(_base(last.type), ', '.join(names))};\n".lstrip()


def _variable(item: tree.DeclarationNode) -> str:
    # int x[3] would be a scalar array of D; an array type of C is written with parentheses.
    derived = item.type.derived
    whole = derived and not isinstance(derived[-1], tree.PointerNode)
    text = _declarator(item.type, f"({item.name})" if whole else item.name)
    if item.keys is not None:
        text += f"[{', '.join(map(unparse_type, item.keys))}]"
    elif item.length is not None:
        text += f"[{unparse_expression(item.length)}]"
    return text


def _inline(item: tree.InlineNode) -> str:
    text = f"inline {unparse_type(item.type, item.name)}"
    if item.parameters is not None:
        text += f"[{', '.join(unparse_type(p.type, p.name) for p in item.parameters)}]"
    return f"{text} = {unparse_expression(item.value)};\n"


def _translator(item: tree.TranslatorNode) -> str:
    lines = [f"\t{one.name} = {_expr(one.value, ASSIGN)};\n" for one in item.members]
    source = unparse_type(item.source, item.parameter)
    return f"translator {unparse_type(item.type)} < {source} > {{\n{''.join(lines)}}};\n"


def _provider(item: tree.ProviderNode) -> str:
    lines = []
    for probe in item.probes:
        outputs = f" : {_prototype(probe.outputs)}" if probe.outputs is not None else ""
        sources = ", ".join(one.pattern.text for one in probe.descriptions)
        if probe.predicate is not None:
            sources += f" /{_predicate(probe.predicate)}/"
        if probe.refusal:
            sources = f'refuse("{escape(probe.refusal.encode())}")'
        over = f" = {sources}" if sources else ""
        lines.append(f"\tprobe {probe.name}{_prototype(probe.inputs)}{outputs}{over};\n")
    return f"provider {item.name} {{\n{''.join(lines)}}};\n"


def _prototype(item: tree.PrototypeNode) -> str:
    parameters = [_parameter(p) for p in item.parameters] + ["..."] * item.variadic
    return f"({', '.join(parameters)})"


def _parameter(parameter: tree.ParameterNode) -> str:
    text = unparse_type(parameter.type, parameter.name)
    return text if parameter.value is None else f"{text} = {_expr(parameter.value, TERNARY)}"


def unparse_clause(clause: tree.ClauseNode) -> str:
    """Return the text of one clause, with a newline at the end."""
    lines = [",\n".join(d.pattern.text for d in clause.descriptions)]
    if clause.predicate is not None:
        lines.append(f"/{_predicate(clause.predicate)}/")
    lines.append("{")
    lines += [f"\t{unparse_expression(s)};" for s in clause.statements]
    return "\n".join([*lines, "}\n"])


def _predicate(expr: tree.ExprNode) -> str:
    """Return the text of a predicate. If it begins with *, a space comes first, since /* would
    begin a comment.
    """
    text = unparse_expression(expr)
    return f" {text}" if text.startswith("*") else text


def unparse_expression(expr: tree.ExprNode) -> str:
    return _expr(expr, COMMA)


def _expr(expr: tree.ExprNode, strength: int) -> str:
    """Return the text of an expression, in parentheses if its operator binds more weakly than
    `strength`.
    """
    text, own_strength = _with_strength(expr)
    return f"({text})" if own_strength < strength else text


def _with_strength(expr: tree.ExprNode) -> tuple[str, int]:
    match expr:
        case tree.IntegerNode():
            return expr.text, _PRIMARY
        case tree.StringNode():
            return f'"{escape(expr.value)}"', _PRIMARY
        case tree.NameNode():
            return expr.name, _PRIMARY
        case tree.AggregationNode():
            return f"@{expr.name}", _PRIMARY
        case tree.IndexNode():
            return f"{_expr(expr.base, POSTFIX_STRENGTH)}[{_list(expr.arguments)}]", _PRIMARY
        case tree.CallNode():
            return f"{_expr(expr.function, POSTFIX_STRENGTH)}({_list(expr.arguments)})", _PRIMARY
        case tree.MemberNode():
            base = _expr(expr.base, POSTFIX_STRENGTH)
            # 1.m would be a floating-point number.
            base = f"({base})" if isinstance(expr.base, tree.IntegerNode) else base
            return f"{base}{expr.op}{expr.name}", POSTFIX_STRENGTH
        case tree.PostfixNode():
            return f"{_expr(expr.operand, POSTFIX_STRENGTH)}{expr.op}", POSTFIX_STRENGTH
        case tree.PrefixNode():
            return _prefix(expr), PREFIX_STRENGTH
        case tree.CastNode():
            return (
                f"({unparse_type(expr.type)}){_expr(expr.operand, PREFIX_STRENGTH)}",
                PREFIX_STRENGTH,
            )
        case tree.TypedNode():
            shown = spelled(PointerType(expr.type) if expr.pointer else expr.type)
            return f"({shown}){_expr(expr.operand, PREFIX_STRENGTH)}", PREFIX_STRENGTH
        case tree.OffsetOfNode():
            return f"offsetof({unparse_type(expr.type)}, {expr.member})", _PRIMARY
        case tree.XlateNode():
            operand = unparse_expression(expr.operand)
            return f"xlate < {unparse_type(expr.type)} > ({operand})", _PRIMARY
        case tree.SizeofTypeNode():
            return f"sizeof ({unparse_type(expr.type)})", PREFIX_STRENGTH
        case tree.InfixNode():
            return _infix(expr), INFIX[expr.op]
        case tree.AssignmentNode():
            left = _expr(expr.left, TERNARY + 1)
            return f"{left} {expr.op} {_expr(expr.right, ASSIGN)}", ASSIGN
        case tree.TernaryNode():
            condition = _expr(expr.condition, TERNARY + 1)
            then, otherwise = _expr(expr.then, COMMA), _expr(expr.otherwise, TERNARY)
            return f"{condition} ? {then} : {otherwise}", TERNARY
    raise AssertionError(f"no D text for {type(expr).__name__}")


def _prefix(expr: tree.PrefixNode) -> str:
    operand = _expr(expr.operand, PREFIX_STRENGTH)
    if expr.op.isalpha():
        return f"{expr.op} ({unparse_expression(expr.operand)})"
    # A space keeps - -x and & &x from becoming --x and &&x.
    return f"{expr.op} {operand}" if operand[0] == expr.op[0] else f"{expr.op}{operand}"


def _infix(expr: tree.InfixNode) -> str:
    strength = INFIX[expr.op]
    left, right = _expr(expr.left, strength), _expr(expr.right, strength + 1)
    if expr.op == ",":
        return f"{left}, {right}"
    return f"{left} {expr.op} {right}"


def _list(arguments: tuple[tree.ExprNode, ...]) -> str:
    return ", ".join(_expr(a, ASSIGN) for a in arguments)


def unparse_type(type_: tree.TypeNode, name: str = "") -> str:
    """Return a type with a declared name as C writes it: int (*name)[4]."""
    return _spaced(_base(type_), _declarator(type_, name))


def _spaced(base: str, declarator: str) -> str:
    return f"{base} {declarator}" if declarator else base


def _base(type_: tree.TypeNode) -> str:
    """Return the text of a type without its stars and declarator."""
    return " ".join((*type_.words, *([_body(type_.body)] if type_.body else [])))


def _body(body: tree.StructBodyNode | tree.EnumBodyNode) -> str:
    if isinstance(body, tree.EnumBodyNode):
        rows = [
            e.name if e.value is None else f"{e.name} = {_expr(e.value, TERNARY)}"
            for e in body.enumerators
        ]
        return f"{{ {', '.join(rows)} }}"
    lines: list[str] = []
    last: object = None
    for field in body.fields:
        width = "" if field.width is None else f": {_expr(field.width, TERNARY)}"
        member = " ".join(filter(None, (_declarator(field.type, field.name), width)))
        # In struct { ... } a, b; the second name has no type of its own.
        if field.type.body is not None and field.type.body is last:
            lines[-1] += f", {member}"
        else:
            lines.append(_spaced(_base(field.type), member))
        last = field.type.body
    return " ".join(["{", *(f"{line};" for line in lines), "}"])


def _declarator(type_: tree.TypeNode, name: str) -> str:
    """Return the text of a declarator: the name with its stars, brackets and parentheses."""
    text = name
    for derivation in reversed(type_.derived):
        if isinstance(derivation, tree.PointerNode):
            text = f"*{text}"
            continue
        text = f"({text})" if text.startswith("*") else text
        if isinstance(derivation, tree.ArrayNode):
            text += f"[{'' if derivation.count is None else _expr(derivation.count, TERNARY)}]"
        else:
            taken = [
                *map(unparse_type, derivation.parameters),
                *(["..."] if derivation.variadic else []),
            ]
            text += f"({', '.join(taken) or 'void'})"
    outer = type_.derived and isinstance(type_.derived[0], tree.PointerNode)
    return "*" * type_.stars + (f"({text})" if outer else text)
