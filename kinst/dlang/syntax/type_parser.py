"""Parser of types: specifiers, declarators, bodies of structures and enumerations (K&R A8; Dynamic
Tracing Guide, "Structs and Unions").

Tested by tests/dlang/syntax/test_parse.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from kinst.core.errors import DError, Span
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.lexer import Lexer, Token
from kinst.dlang.vocabulary.type_names import (
    BASE_WORDS,
    FLOATS,
    LIBRARY_TYPES,
    QUALIFIERS,
    STARTS_TYPE,
    TAGS,
    TYPEDEFS,
    check_attributes,
    words,
)

MAX_DEPTH = 100
MAX_BODIES = 20  # largest number of nested structures or declarators

KEYWORDS = (
    words(
        "auto break case continue counter default do else enum extern for goto if import inline"
        " offsetof probe provider register return sizeof static stringof struct switch"
        " translator typedef union while xlate float double"
    )
    | BASE_WORDS
    | QUALIFIERS
)
ACTION_KEYWORDS = words("goto return")  # keywords that are names of actions if ( follows
CLASSES = words("auto register static extern typedef self this")  # storage classes
_ATTRIBUTES = words("short long signed unsigned")
# Strings, character constants and comments.
_NO_CODE = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|/\*.*?\*/""", re.DOTALL)


def _is_void(type_: tree.TypeNode) -> bool:
    """Return whether a type is void itself, not a pointer to void."""
    words = [w for w in type_.words if w not in QUALIFIERS]
    return words == ["void"] and not type_.stars and not type_.derived


def check_prototype(
    kind: str, parameters: Sequence[tree.ParameterNode], variadic: bool, span: Span
) -> None:
    """Check the use of void, ... and names in the parameters of a function, an associative array or
    an inline. Names of types are not looked up (libdtrace's dt_decl_prototype()). Raises DError
    D_DECL_PROTO_*.

    Args:
        kind: "function", or "array" for associative arrays and inlines.
        variadic: whether ... follows the last parameter.
        span: where the parameters begin.
    """
    seen: set[str] = set()
    for number, parameter in enumerate(parameters, 1):
        void, name = _is_void(parameter.type), parameter.name
        if void and kind != "function":
            shown = name or "(anonymous)"
            message = f"{kind} prototype may not use parameter of type void: {shown}"
            message += f", parameter #{number}"
            raise DError(message, parameter.span, "D_DECL_PROTO_TYPE")
        if void and name:
            message = f"void parameter may not have a name: {name}"
            raise DError(message, parameter.span, "D_DECL_PROTO_NAME")
        if name and name in seen:
            message = f"parameter is already declared in {kind} prototype: {name}"
            message += f", parameter #{number}"
            raise DError(message, parameter.span, "D_DECL_PROTO_FORM")
        seen.add(name)
    if variadic and kind != "function":
        message = f"{kind} prototype may not use a variable-length argument list"
        raise DError(message, span, "D_DECL_PROTO_VARARGS")
    voids = [one.span for one in parameters if _is_void(one.type)]
    if voids and (len(parameters) > 1 or variadic):
        raise DError("void must be sole parameter", voids[0], "D_DECL_PROTO_VOID")


def further(base: tree.TypeNode) -> tree.TypeNode:
    """Return the specifiers for the next declarator in a list such as `struct s { ... } a, b;`: for
    b, they are `struct s` without the body, which would define the structure again. Specifiers
    without a tag are returned unchanged.
    """
    return replace(base, body=None) if base.body is not None and base.body.tag else base


class TypeParser:
    """Parser of types, which starts at `token`. The current token is always the first unused token.

    Args:
        knows_type: tells whether a word is the name of a type that the kernel or a D library
            declares; None if there are no such types.
    """

    def __init__(self, lexer: Lexer, knows_type: Callable[[str], bool] | None = None) -> None:
        self.lexer = lexer
        self.source = lexer.source
        self.token = Token("end", "", self.source.span(0, 0), 0, 0)
        self.typedefs: set[str] = set()  # names of the program's own typedefs
        self._knows_type = knows_type or (lambda name: False)
        self._bodies = 0

    def advance(self) -> Token:
        """Return the current token and make the next token the current one."""
        used = self.token
        self.token = self.lexer.expression(used.end)
        return used

    def at(self, *operators: str) -> bool:
        return self.token.kind == "op" and self.token.text in operators

    def expect(self, operator: str) -> Token:
        if not self.at(operator):
            raise self.unexpected(f"{operator} expected")
        return self.advance()

    def unexpected(self, hint: str = "") -> DError:
        """Return a D_SYNTAX error at the current token, with this hint."""
        if not hint and self.token.kind == "end":
            text = _NO_CODE.sub("", self.source.text)
            hint = "} is missing" if text.count("{") > text.count("}") else ""
        shown = str(self.token)[:40]
        where = shown if self.token.kind == "end" else f'"{shown}"'
        return DError(f"syntax error near {where}", self.token.span, "D_SYNTAX", hint)

    def from_to(self, start: int, end: int) -> Span:
        return self.source.span(start, end)

    def constant(self) -> tree.ExprNode:
        """Parse an expression without a comma operator, such as an array's dimension or a
        bit-field's width.
        """
        raise NotImplementedError

    def names_type(self, name: str) -> bool:
        """Return whether a word that is not a keyword is the name of a type."""
        plain = name.removeprefix("D`")
        in_program = name in TYPEDEFS or name in LIBRARY_TYPES or plain in self.typedefs
        return in_program or self._knows_type(name)

    def specifiers(self) -> tree.TypeNode:
        """Parse a type without stars and declarator: const unsigned long, struct file, foo_t."""
        type_words: list[str] = []
        start, end = self.token.start, self.token.end
        named = False
        while self.token.kind == "name":
            text = self.token.text
            if text in TAGS and (not named or set(type_words) <= _ATTRIBUTES | QUALIFIERS):
                check_attributes(type_words, "", self.token.span)
                tagged = self._tagged(type_words)
                if tagged.body is not None or tagged.words[-1] not in TAGS:
                    type_words, named, end = list(tagged.words), True, self._end
                    body = tagged.body
                    while self.token.kind == "name" and self.token.text in (
                        QUALIFIERS | _ATTRIBUTES
                    ):
                        check_attributes([self.token.text], "", self.token.span)
                        end = self.advance().end
                    return tree.TypeNode(tuple(type_words), 0, self.from_to(start, end), (), body)
                raise self.unexpected("a tag or { expected")
            if text in BASE_WORDS or text in FLOATS:
                named = True
            elif text not in QUALIFIERS:
                if text in KEYWORDS or (named and not self._goes_on(type_words)):
                    break
                named = True
            type_words.append(text)
            end = self.advance().end
        if not type_words:
            raise self.unexpected("a type expected")
        return tree.TypeNode(tuple(type_words), 0, self.from_to(start, end))

    def _goes_on(self, type_words: list[str]) -> bool:
        """Return whether the current name is a further word of the type, rather than the declared
        name: foo_t in `unsigned foo_t x`.

        Args:
            type_words: words of the type so far.
        """
        if not set(type_words) <= _ATTRIBUTES | QUALIFIERS or not self.names_type(self.token.text):
            return False
        return self.lexer.expression(self.token.end).kind == "name"

    def _tagged(self, before: list[str]) -> tree.TypeNode:
        """Parse struct, union or enum with a tag, a body or both.

        Args:
            before: words of the type before the word struct, union or enum.
        """
        kind = self.advance()
        self._end = kind.end
        tag = ""
        if self.token.kind == "name" and self.token.text not in KEYWORDS:
            self._end = self.token.end
            tag = self.advance().text
        body: tree.StructBodyNode | tree.EnumBodyNode | None = None
        if self.at("{"):
            body = self._enumeration(tag) if kind.text == "enum" else self._structure(kind, tag)
        head = (*before, kind.text, tag) if tag else (*before, kind.text)
        return tree.TypeNode(head, 0, kind.span, (), body)

    def _structure(self, kind: Token, tag: str) -> tree.StructBodyNode:
        self._bodies += 1
        if self._bodies > MAX_BODIES:
            message = f"structures are nested more than {MAX_BODIES} levels deep"
            raise DError(message, kind.span, "D_SYNTAX")
        self.advance()
        fields: list[tree.FieldNode] = []
        while not self.at("}"):
            base = self.specifiers()
            if self.at(";"):
                fields.append(tree.FieldNode(base, "", None, base.span))
            else:
                fields.append(self._field(base))
                while self.at(","):
                    self.advance()
                    fields.append(self._field(further(base)))
            self.expect(";")
        self._end = self.advance().end
        self._bodies -= 1
        return tree.StructBodyNode(kind.text, tag, tuple(fields), kind.span)

    def _field(self, base: tree.TypeNode) -> tree.FieldNode:
        type_, name = base, None
        if not self.at(":"):
            type_, name = self.declarator(base)
        width: tree.ExprNode | None = None
        if self.at(":"):
            self.advance()
            width = self.constant()
        if name is not None and "`" in name.text:
            message = f"D scoping operator may not be used in a member name ({name.text})"
            raise DError(message, name.span, "D_DECL_SCOPE")
        if name is None and width is None:
            raise DError("member declaration requires a name", base.span, "D_DECL_MNAME")
        span = name.span if name else base.span
        return tree.FieldNode(type_, name.text if name else "", width, span)

    def _enumeration(self, tag: str) -> tree.EnumBodyNode:
        span = self.advance().span
        enumerators: list[tree.EnumeratorNode] = []
        while not self.at("}"):
            if enumerators:
                self.expect(",")
                if self.at("}"):
                    break
            if self.token.kind != "name" or self.token.text in KEYWORDS:
                raise self.unexpected("a name expected")
            name = self.advance()
            if "`" in name.text:
                message = f"D scoping operator may not be used in an enumerator name ({name.text})"
                raise DError(message, name.span, "D_DECL_SCOPE")
            value: tree.ExprNode | None = None
            if self.at("="):
                self.advance()
                value = self.constant()
            enumerators.append(tree.EnumeratorNode(name.text, value, name.span))
        if not enumerators:
            raise self.unexpected("an enumerator expected")
        self._end = self.advance().end
        return tree.EnumBodyNode(tag, tuple(enumerators), span)

    def type_name(self) -> tree.TypeNode:
        """Parse a type without a declared name, as in a cast or in sizeof."""
        type_, name = self.declarator(self.specifiers())
        if name is not None:
            self.token = name
            raise self.unexpected("a type has no name here")
        return type_

    def declarator(self, base: tree.TypeNode, depth: int = 0) -> tuple[tree.TypeNode, Token | None]:
        """Parse a declarator: stars, a name or a declarator in parentheses, then any [ ] and ( ).
        Return the whole type, and the name's token (None if there is no name).

        Args:
            base: the specifiers before the declarator.
            depth: number of declarators around this declarator.
        """
        stars, derived, name = self._declared(depth)
        return replace(base, stars=base.stars + stars, derived=derived), name

    def _declared(self, depth: int) -> tuple[int, tuple[tree.Derivation, ...], Token | None]:
        if depth > MAX_BODIES:
            message = f"declarators are nested more than {MAX_BODIES} levels deep"
            raise DError(message, self.token.span, "D_SYNTAX")
        stars, name = self.stars(), None
        inner: tuple[tree.Derivation, ...] = ()
        if self.at("(") and self._is_inner():
            self.advance()
            more, inner, name = self._declared(depth + 1)
            inner = (*((tree.PointerNode(),) * more), *inner)
            self.expect(")")
        elif self.token.kind == "name" and self.token.text not in KEYWORDS:
            name = self.advance()
        suffixes: list[tree.Derivation] = []
        while self.at("[", "("):
            suffixes.append(self.derivation(depth))
        return stars, (*reversed(suffixes), *inner), name

    def _is_inner(self) -> bool:
        """Return whether the current ( begins a declarator in parentheses, rather than
        parameters.
        """
        after = self.lexer.expression(self.token.end)
        if after.kind == "op":
            return after.text in ("*", "(", "[")
        free = after.kind == "name" and after.text not in KEYWORDS
        return free and not self.names_type(after.text)

    def derivation(self, depth: int = 0) -> tree.Derivation:
        """Parse one [ ] or ( ) of a declarator."""
        return self._dimension() if self.at("[") else self._parameters(depth)

    def starts_type(self, word: str) -> bool:
        """Return whether a word can begin a type."""
        return word in STARTS_TYPE or (word not in KEYWORDS and self.names_type(word))

    def lists_keys(self) -> bool:
        """Return whether the current [ begins the key types of an associative array, rather than a
        number of elements.
        """
        after = self.lexer.expression(self.token.end)
        return after.text == "..." or (after.kind == "name" and self.starts_type(after.text))

    def _dimension(self) -> tree.Derivation:
        if self.lists_keys():
            message = "an associative array cannot be a part of another type"
            raise DError(message, self.token.span, "D_DECL_DYNOBJ")
        bracket = self.advance()
        count = None if self.at("]") else self.constant()
        self.expect("]")
        return tree.ArrayNode(count, bracket.span)

    def parameters(
        self, depth: int = 0, brackets: str = "()", *, with_values: bool = False
    ) -> tuple[tuple[tree.ParameterNode, ...], bool]:
        """Parse parameters in brackets; return them, and whether ... follows the last parameter.

        Raises DError D_DECL_PARMCLASS, D_DECL_PROTO_TYPE and the errors of types.

        Args:
            depth: number of declarators around the parameters.
            brackets: the opening and the closing bracket.
            with_values: whether a parameter may be `type = value`, as in a D library's declaration
                of a probe: the value is a D expression for this argument of the probe.
        """
        opening, closing = brackets[0], brackets[1]
        self.expect(opening)
        parameters: list[tree.ParameterNode] = []
        variadic = False
        while not self.at(closing):
            if parameters:
                self.expect(",")
            if self.at("..."):
                self.advance()
                variadic = True
                break
            parameter = self._parameter(len(parameters) + 1, depth)
            if with_values and self.at("="):
                self.advance()
                parameter = replace(parameter, value=self.constant())
            parameters.append(parameter)
        self.expect(closing)
        return tuple(parameters), variadic

    def _parameter(self, number: int, depth: int) -> tree.ParameterNode:
        """Parse one parameter, `type` or `type name`.

        Args:
            number: number of the parameter, from 1.
            depth: number of declarators around the parameter.
        """
        start = self.token.span
        self._register_at_most()
        base = self.specifiers()
        self._register_at_most()
        try:
            type_, name = self.declarator(base, depth)
        except DError as error:
            if error.tag != "D_DECL_DYNOBJ":
                raise
            message = f"prototype may not use an associative array: parameter #{number}"
            raise DError(message, error.span, "D_DECL_PROTO_TYPE") from None
        return tree.ParameterNode(type_, *((name.text, name.span) if name else ("", start)))

    def _register_at_most(self) -> None:
        """Skip the word register. Raises DError D_DECL_PARMCLASS for any other storage class."""
        if self.token.kind == "name" and self.token.text in CLASSES - {"register"}:
            message = "inappropriate storage class for function or associative array parameter"
            raise DError(message, self.token.span, "D_DECL_PARMCLASS")
        if self.token.kind == "name" and self.token.text == "register":
            self.advance()

    def keys(self) -> tuple[tree.ParameterNode, ...]:
        """Parse [ ] with the parameters of an associative array or of an inline. Raises DError
        D_DECL_PARMCLASS, D_DECL_PROTO_* and the errors of types.
        """
        span = self.token.span
        parameters, variadic = self.parameters(brackets="[]")
        check_prototype("array", parameters, variadic, span)
        return parameters

    def _parameters(self, depth: int) -> tree.Derivation:
        span = self.token.span
        parameters, variadic = self.parameters(depth + 1)
        check_prototype("function", parameters, variadic, span)
        types = tuple(one.type for one in parameters if not _is_void(one.type))
        return tree.FunctionNode(types, variadic)

    def stars(self) -> int:
        """Parse any number of *, and ignore qualifiers between them; return the number of *."""
        count = 0
        while True:
            if self.at("*"):
                count += 1
                if count > MAX_DEPTH:
                    message = f"expression is nested more than {MAX_DEPTH} levels deep"
                    hint = "use a variable for a part of it"
                    raise DError(message, self.token.span, "D_SYNTAX", hint)
            elif not (self.token.kind == "name" and self.token.text in QUALIFIERS):
                return count
            self.advance()
