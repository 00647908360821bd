"""provider declarations, as the grammar of D has them:

provider name { probe name(parameters); probe name(parameters) : (parameters); ... };

(Dynamic Tracing Guide, "Statically Defined Tracing for User Applications")."""

from __future__ import annotations

from kinst.dlang.syntax import tree
from kinst.dlang.syntax.expression_parser import ExpressionParser
from kinst.dlang.syntax.lexer import Token
from kinst.dlang.syntax.type_parser import KEYWORDS


def provider(parser: ExpressionParser) -> tree.Provider:
    """The declaration whose first token is the current one; the last one stays the current one.
    Raises DError D_SYNTAX, D_DECL_*."""
    parser.advance()
    name = _name(parser, "the provider's name expected")
    parser.expect("{")
    probes = []
    while not parser.at("}"):
        if parser.token.text != "probe":
            raise parser.unexpected("probe or } expected")
        parser.advance()
        probes.append(_probe(parser))
    parser.advance()
    if not parser.at(";"):
        raise parser.unexpected("; expected")
    return tree.Provider(name.span, name.text, tuple(probes))


def _name(parser: ExpressionParser, expected: str) -> Token:
    if parser.token.kind != "name" or parser.token.text in KEYWORDS:
        raise parser.unexpected(expected)
    return parser.advance()


def _probe(parser: ExpressionParser) -> tree.ProbeDeclaration:
    """name(parameters); or name(parameters) : (parameters);"""
    name = _name(parser, "the probe's name expected")
    inputs, outputs = _prototype(parser), None
    if parser.at(":"):
        parser.advance()
        outputs = _prototype(parser)
    parser.expect(";")
    return tree.ProbeDeclaration(name.text, inputs, outputs, name.span)


def _prototype(parser: ExpressionParser) -> tree.Prototype:
    return tree.Prototype(*parser.parameters())
