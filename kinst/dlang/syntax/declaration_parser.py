"""Parser of declarations: variables, types, inlines, translators and providers.

Tested by tests/dlang/syntax/test_parse.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from kinst.core.errors import DError, Span
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.expression_parser import ExpressionParser
from kinst.dlang.syntax.lexer import Lexer, Token
from kinst.dlang.syntax.type_parser import KEYWORDS, further
from kinst.dlang.vocabulary.type_names import STARTS_TYPE, TAGS, words

# Parses what follows the = of a library's probe: descriptions, and a predicate.
Sources = Callable[[], tuple[tuple[tree.DescriptionNode, ...], tree.ExprNode | None]]


def provider(parser: ExpressionParser, sources: Sources) -> tree.ProviderNode:
    """Parse `provider name { probes };` and leave the semicolon as the current token. Raises DError
    D_SYNTAX, D_DECL_*.

    Args:
        sources: parses what follows the = in the declaration of a library's probe: the descriptions
            and the predicate that say when the probe fires. The = is then the current token.
    """
    parser.advance()
    name = _name(parser, "the provider's name expected")
    parser.expect("{")
    probes = []
    while not parser.at("}"):
        if parser.token.text != "probe":
            raise parser.unexpected("probe or } expected")
        parser.advance()
        probes.append(_probe(parser, sources))
    parser.advance()
    if not parser.at(";"):
        raise parser.unexpected("; expected")
    return tree.ProviderNode(name.span, name.text, tuple(probes))


def _name(parser: ExpressionParser, expected: str) -> Token:
    if parser.token.kind != "name" or parser.token.text in KEYWORDS:
        raise parser.unexpected(expected)
    return parser.advance()


def _probe(parser: ExpressionParser, sources: Sources) -> tree.ProbeDeclarationNode:
    """Parse a probe in a provider declaration: `name(parameters);` or `name(parameters) :
    (parameters);`. In a library, `= descriptions /predicate/` or `= refuse("reason")` may come
    before the semicolon.
    """
    name = _name(parser, "the probe's name expected")
    inputs, outputs = _prototype(parser), None
    if parser.at(":"):
        parser.advance()
        outputs = _prototype(parser, with_values=True)
    if not parser.at("="):
        parser.expect(";")
        return tree.ProbeDeclarationNode(name.text, inputs, outputs, name.span)
    following = parser.lexer.expression(parser.token.end)
    if following.text == "refuse":
        parser.advance()
        reason = refusal(parser.constant())
        if not reason:
            raise parser.unexpected('refuse("reason") expected')
        parser.expect(";")
        return tree.ProbeDeclarationNode(name.text, inputs, outputs, name.span, refusal=reason)
    descriptions, predicate = sources()
    parser.expect(";")
    return tree.ProbeDeclarationNode(name.text, inputs, outputs, name.span, descriptions, predicate)


def refusal(node: tree.ExprNode) -> str:
    """Return the reason if an expression is refuse("reason"), otherwise "". A library writes
    refuse() for a probe or member that the system does not have.
    """
    if not isinstance(node, tree.CallNode) or len(node.arguments) != 1:
        return ""
    function, reason = node.function, node.arguments[0]
    is_refusal = isinstance(function, tree.NameNode) and function.name == "refuse"
    return reason.value.decode() if is_refusal and isinstance(reason, tree.StringNode) else ""


def _prototype(parser: ExpressionParser, *, with_values: bool = False) -> tree.PrototypeNode:
    return tree.PrototypeNode(*parser.parameters(with_values=with_values))


_NOT_YET = words("import counter")

_CLASSES = words("auto register static")  # C's storage classes that D does not have

_STORAGE = words("inline self this typedef extern") | _CLASSES

_TYPEDEF_NAME = re.compile(r"[A-Za-z_][0-9A-Za-z_]*\*?\Z")

# First words of declarations: whatever else begins at the outer level is a clause.
_NOT_CLAUSES = STARTS_TYPE | _NOT_YET | _STORAGE | {"translator", "provider"}


class DeclarationParser(ExpressionParser):
    """Parser of declarations, which it appends to `items`."""

    def __init__(self, lexer: Lexer, knows_type: Callable[[str], bool] | None = None) -> None:
        super().__init__(lexer, knows_type)
        self.items: list[tree.ItemNode] = []

    def sources(self) -> tuple[tuple[tree.DescriptionNode, ...], tree.ExprNode | None]:
        """Parse what follows the = (the current token) in the declaration of a library's probe:
        descriptions and a predicate. Leave the token after them as the current token.
        """
        raise NotImplementedError

    def declares(self, head: Token) -> bool:
        """Return whether a declaration, rather than a clause, begins with this token.

        The lexer has read the token as a probe description. In a declaration, it can therefore be
        more than the type's first word: int, int* or uint64_t*x.
        """
        if head.kind != "description" or ":" in head.text:
            return False
        word = head.text.split("*", 1)[0]
        if word in _NOT_CLAUSES or word in self.typedefs:
            return True
        # `foo_t x;` and `foo_t *x;` cannot be clauses: , / or { follows a clause's description.
        if not _TYPEDEF_NAME.match(head.text):
            return False
        name = self.lexer.head(head.end)
        return name.kind == "description" and self.lexer.head(name.end).text in (";", ",")

    def declaration(self, head: Token) -> int:
        """Parse one declaration and return the offset after its semicolon. Raises DError."""
        self.token = self.lexer.expression(head.start)
        word = self.token.text
        if word in _NOT_YET:
            raise DError(f"{word} is not supported yet", self.token.span, "D_UNKNOWN")
        if word == "translator":
            return self._translator()
        if word == "provider":
            self.items.append(provider(self, self.sources))
            return self.token.end
        storage = self.advance().text if word in _STORAGE else ""
        if storage in ("static", "extern") and self.token.text == "inline":
            self.advance()  # C's inline, of a function
            storage = "static"
        if storage in _CLASSES and storage != "static":
            raise self._bad_class()
        word = self.token.text
        if storage and word in _STORAGE:
            message = f"only one storage class allowed in declaration: {storage} {word}"
            raise DError(message, self.token.span, "D_DECL_CLASS")
        base = self._specifiers_or_int(storage)
        if self.at(";"):
            if base.body is None and base.words[0] not in TAGS:
                message = "useless declaration"
                raise DError(message, base.span, "D_DECL_USELESS", "a name is missing")
            self.items.append(tree.TypeDeclarationNode(base.span, base))
            return self.token.end
        if base.body is not None:
            self.items.append(tree.TypeDeclarationNode(base.span, base))
            base = further(base)
        if storage == "inline":
            self.items.append(self._inline(base))
            return self.token.end
        if storage == "typedef":
            return self._typedef(base)
        return self._objects(base, storage)

    def _objects(self, base: tree.TypeNode, storage: str) -> int:
        """Parse the declared variables or functions after their type; return the offset after the
        semicolon.

        The word static may stand only before functions. Functions in C's headers have bodies, which
        are skipped.
        """
        scope = "" if storage == "static" else storage
        first = len(self.items)

        def one() -> None:
            declaration = self._variable(base, scope)
            if storage == "static" and declaration.scope != "extern":
                raise self._bad_class()
            self.items.append(declaration)

        one()
        if self.at("{") and storage in ("static", "extern"):
            declaration = self.items[first]
            if isinstance(declaration, tree.DeclarationNode) and declaration.scope == "extern":
                return self._skip_body()
        return self._more(one)

    def _skip_body(self) -> int:
        """Skip { ... } with everything nested in it; return the offset after the closing brace."""
        depth = 0
        while True:
            if self.token.kind == "end":
                raise self.unexpected("} expected")
            depth += self.at("{") - self.at("}")
            if not depth:
                return self.token.end
            self.advance()

    def _bad_class(self) -> DError:
        message = "specified storage class not appropriate in D"
        return DError(message, self.token.span, "D_DECL_BADCLASS")

    def _specifiers_or_int(self, storage: str) -> tree.TypeNode:
        """Parse the type of a declaration. If only a name follows the storage class, the type is
        int, as in old C.
        """
        if storage and self.token.kind == "name" and not self.starts_type(self.token.text):
            after = self.lexer.expression(self.token.end)
            if after.kind == "op" and after.text in (";", ",", "[", "("):
                return tree.TypeNode(("int",), 0, self.token.span)
        return self.specifiers()

    def _list_of(self, parse_element: Callable[[], None]) -> int:
        """Parse a comma-separated list up to its semicolon, and return the offset after the
        semicolon.

        Args:
            parse_element: parses one element.
        """
        parse_element()
        return self._more(parse_element)

    def _more(self, parse_element: Callable[[], None]) -> int:
        """Parse the rest of a comma-separated list, from its first comma up to its semicolon;
        return the offset after the semicolon.

        Args:
            parse_element: parses one element.
        """
        while self.at(","):
            self.advance()
            parse_element()
        if not self.at(";"):
            raise self.unexpected("; expected")
        return self.token.end

    def _declared_name(self) -> Token:
        name = self.token
        if name.kind == "name" and name.text in STARTS_TYPE & KEYWORDS:
            message = f"invalid type combination: {name.text} after a type"
            raise DError(message, name.span, "D_DECL_COMBO", "is there a ; before it?")
        if name.kind != "name" or name.text in KEYWORDS:
            raise self.unexpected("a variable name expected")
        if "`" in name.text:
            raise self._scoped(name)
        return self.advance()

    def _typedef(self, base: tree.TypeNode) -> int:
        def one() -> None:
            type_, name = self.declarator(base)
            if name is None or "`" in name.text:
                raise self.unexpected("a name for the type expected")
            self.items.append(tree.TypeDeclarationNode(name.span, type_, name.text))
            self.typedefs.add(name.text)

        return self._list_of(one)

    def _variable(self, base: tree.TypeNode, scope: str) -> tree.DeclarationNode:
        """Parse the declarator of a variable: stars, a name, and [ ] with the types of keys or a
        number of elements. An extern declaration or a function's declaration makes no variable.
        """
        if self.at("(") or scope == "extern":
            return self._complicated(base, scope)
        type_ = replace(base, stars=self.stars())
        if self.at("("):
            return self._complicated(type_, scope)
        name = self._declared_name()
        keys: tuple[tree.TypeNode, ...] | None = None
        length: tree.ExprNode | None = None
        if self.at("["):
            if self.lists_keys():
                keys = tuple(parameter.type for parameter in self.keys())
            else:
                bracket = self.advance()
                if self.at("]"):
                    raise self._without_dimension(name.text, bracket.span)
                length = self.expression()
                self.expect("]")
            if keys is not None and self.at("["):
                message = "cannot declare array of associative arrays"
                raise DError(message, self.token.span, "D_DECL_DYNOBJ", "write [int, int]")
        suffixes: list[tree.Derivation] = []
        while self.at("[") or (self.at("(") and length is None and keys is None):
            suffixes.append(self.derivation())
            if isinstance(suffixes[-1], tree.FunctionNode):
                scope = "extern"
        type_ = replace(type_, derived=tuple(reversed(suffixes)))
        if self.at("="):
            hint = f"{name.text} = ... in a BEGIN clause"
            raise self.unexpected(f"a declaration has no initial value; write {hint}")
        return tree.DeclarationNode(name.span, type_, name.text, scope, keys, length)

    def _complicated(self, base: tree.TypeNode, scope: str) -> tree.DeclarationNode:
        """Parse a declarator that may have parentheses, such as int (*f)(void), of a variable or
        function.
        """
        type_, name = self.declarator(base)
        if name is None:
            raise self.unexpected("a variable name expected")
        if "`" in name.text:
            raise self._scoped(name)
        outermost = type_.derived[-1] if type_.derived else None
        if isinstance(outermost, tree.FunctionNode):
            scope = "extern"
        if isinstance(outermost, tree.ArrayNode) and scope != "extern":
            type_ = replace(type_, derived=type_.derived[:-1])
            if outermost.count is None:
                raise self._without_dimension(name.text, outermost.span)
            return tree.DeclarationNode(name.span, type_, name.text, scope, None, outermost.count)
        return tree.DeclarationNode(name.span, type_, name.text, scope)

    @staticmethod
    def _without_dimension(name: str, span: Span) -> DError:
        message = "array declaration requires array dimension or tuple signature"
        return DError(message, span, "D_DECL_ARRNULL", f"{name}[int, string]")

    @staticmethod
    def _scoped(name: Token) -> DError:
        message = f"D scoping operator may not be used in a declaration name ({name.text})"
        return DError(message, name.span, "D_DECL_SCOPE")

    def _inline(self, base: tree.TypeNode) -> tree.InlineNode:
        """Parse `name = expression` or `name[type key, ...] = expression` of an inline."""
        type_ = replace(base, stars=self.stars())
        name = self._declared_name()
        parameters: tuple[tree.ParameterNode, ...] | None = None
        if self.at("["):
            parameters = self.keys()
        if not self.at("="):
            raise self.unexpected("an inline needs its value: = expected")
        self.advance()
        value = self.expression()
        if not self.at(";"):
            raise self.unexpected("; expected")
        return tree.InlineNode(name.span, type_, name.text, parameters, value)

    def _translator(self) -> int:
        """Parse `translator type < source parameter > { member = expression; ... };` and return the
        offset after it.
        """
        span = self.advance().span
        type_ = self.type_name()
        self.expect("<")
        source, name = self.declarator(self.specifiers())
        if name is None:
            raise self.unexpected("a name for the translator's parameter expected")
        self.expect(">")
        self.expect("{")
        members: list[tree.MemberValueNode] = []
        while not self.at("}"):
            if self.token.kind != "name" or self.token.text in KEYWORDS:
                raise self.unexpected("a member expected")
            member = self.advance()
            self.expect("=")
            members.append(tree.MemberValueNode(member.text, self.constant(), member.span))
            self.expect(";")
        self.advance()
        if not self.at(";"):
            raise self.unexpected("; expected")
        self.items.append(tree.TranslatorNode(span, type_, source, name.text, tuple(members)))
        return self.token.end
