"""Parser of expressions, by recursive descent on operator precedence, with a bound on nesting.

Each level of nesting takes two Python frames. No tree is higher than MAX_DEPTH, so later stages may
recurse on the tree.

Tested by tests/dlang/syntax/test_parse.py.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.core.errors import DError, Span
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.lexer import Lexer, Token
from kinst.dlang.syntax.type_parser import ACTION_KEYWORDS, KEYWORDS, MAX_DEPTH, TypeParser
from kinst.dlang.vocabulary import builtins
from kinst.dlang.vocabulary.type_names import STARTS_TYPE, TYPEDEFS, words

# Binding strength, weakest first (K&R A7; ^^ lies between || and &&, as in libdtrace).
COMMA, ASSIGN, TERNARY = 1, 2, 3
INFIX = {
    "||": 4, "^^": 5, "&&": 6, "|": 7, "^": 8, "&": 9, "==": 10, "!=": 10,
    "<": 11, "<=": 11, ">": 11, ">=": 11, "<<": 12, ">>": 12, "+": 13, "-": 13,
    "*": 14, "/": 14, "%": 14, ",": COMMA,
}  # fmt: skip
PREFIX_STRENGTH = 15
POSTFIX_STRENGTH = 16
ASSIGNMENTS = words("= += -= *= /= %= &= ^= |= <<= >>=")
_PREFIXES = words("* & - + ~ ! ++ --")

_Sized = tuple[tree.ExprNode, int]  # an expression and its height


class ExpressionParser(TypeParser):
    def __init__(self, lexer: Lexer, knows_type: Callable[[str], bool] | None = None) -> None:
        super().__init__(lexer, knows_type)
        self.in_predicate = False
        self.args_used = False  # whether the clause so far uses args[]
        self._open: list[str] = []
        self._variables: set[str] = set()  # names that look like types but are assigned to

    def constant(self) -> tree.ExprNode:
        return self._level(TERNARY)[0]

    def expression(self) -> tree.ExprNode:
        """Parse a whole expression, including comma operators."""
        return self._level(COMMA)[0]

    def _higher(self, span: Span, *heights: int) -> int:
        height = max(heights, default=0) + 1
        if height > MAX_DEPTH:
            message = f"expression is nested more than {MAX_DEPTH} levels deep"
            raise DError(message, span, "D_SYNTAX", "use a variable for a part of it")
        return height

    def _level(self, strength: int, depth: int = 0) -> _Sized:
        """Parse an expression whose operators bind at least as strongly as `strength`; return it
        with its height.

        Args:
            depth: nesting depth at which the expression begins.
        """
        self._higher(self.token.span, depth)
        start = self.token.start
        left, height = self._unary(depth)
        while self.token.kind == "op":
            op, at = self.token.text, self.token
            if op == "/" and self._closes_predicate():
                break
            if op in INFIX and INFIX[op] >= strength:
                self.advance()
                right, more = self._level(INFIX[op] + 1, depth + 1)
                height = self._higher(at.span, height, more)
                left = tree.InfixNode(self._operator_span(start, at), op, left, right)
            elif op in ASSIGNMENTS and strength <= ASSIGN:
                self.advance()
                right, more = self._level(ASSIGN, depth + 1)
                height = self._higher(at.span, height, more)
                left = tree.AssignmentNode(self._operator_span(start, at), op, left, right)
            elif op == "?" and strength <= TERNARY:
                self.advance()
                then, more = self._level(COMMA, depth + 1)
                self.expect(":")
                otherwise, most = self._level(TERNARY, depth + 1)
                height = self._higher(at.span, height, more, most)
                left = tree.TernaryNode(self._operator_span(start, at), left, then, otherwise)
            else:
                break
        return left, height

    def _operator_span(self, start: int, at: Token) -> Span:
        """Return the span that errors about an operator show: from its first operand to the
        operator if both are on one line, else the operator alone.

        Args:
            start: offset of the first operand.
            at: the operator.
        """
        whole = self.source.span(start, at.end)
        return whole if whole.line == at.span.line else at.span

    def _closes_predicate(self) -> bool:
        if not self.in_predicate or not self.lexer.ends_predicate(self.token.end):
            return False
        if self._open:
            message = f"closing {self._open[-1]} expected in predicate before /"
            raise DError(message, self.token.span, "D_SYNTAX")
        return True

    def _unary(self, depth: int) -> _Sized:
        """Parse prefix operators and casts, and the postfix expression that they apply to; return
        the whole expression with its height.
        """
        prefixes: list[tuple[Token, tree.TypeNode | None, Span]] = []
        operand: _Sized | None = None
        while operand is None:
            token = self.token
            if len(prefixes) + depth > MAX_DEPTH:
                self._higher(token.span, MAX_DEPTH)
            named = token.text if token.kind == "name" else ""
            if named == "stringof" or (token.kind == "op" and token.text in _PREFIXES):
                prefixes.append((self.advance(), None, token.span))
            elif named == "sizeof":
                self.advance()
                if self._type_in_parentheses():
                    operand = tree.SizeofTypeNode(token.span, self._parenthesized_type()[0]), 1
                else:
                    prefixes.append((token, None, token.span))
            elif self._type_in_parentheses():
                type_, end = self._parenthesized_type()
                prefixes.append((token, type_, self.from_to(token.start, end)))
            else:
                operand = self._postfix(depth)
        expr, height = operand
        for token, cast_to, span in reversed(prefixes):
            height = self._higher(span, height)
            if cast_to is not None:
                expr = tree.CastNode(span, cast_to, expr)
            else:
                expr = tree.PrefixNode(span, token.text, expr)
        return expr, height

    def _postfix(self, depth: int) -> _Sized:
        start = self.token.start
        expr, height = self._primary(depth)
        while self.token.kind == "op":
            op = self.token
            if op.text in ("++", "--"):
                self.advance()
                expr = tree.PostfixNode(self.from_to(start, op.end), op.text, expr)
            elif op.text == "(":
                arguments, more = self._arguments(")", depth)
                if not isinstance(expr, tree.NameNode):
                    message = "function designator is not of function type"
                    raise DError(message, expr.span, "D_FUNC_IDENT")
                expr = tree.CallNode(expr.span, expr, arguments)
                height = max(height, more)
            elif op.text == "[":
                arguments, more = self._arguments("]", depth)
                if not arguments:
                    raise DError('syntax error near "]"', op.span, "D_SYNTAX", "an index expected")
                expr = tree.IndexNode(expr.span, expr, arguments)
                height = max(height, more)
            elif op.text in (".", "->"):
                self.advance()
                if self.token.kind != "name":
                    message = f"operator {op.text} must be followed by an identifier"
                    raise DError(message, self.token.span, "D_OP_IDENT")
                name = self.advance()
                expr = tree.MemberNode(self.from_to(start, name.end), expr, op.text, name.text)
            else:
                break
            height = self._higher(op.span, height)
        return expr, height

    def _arguments(self, close: str, depth: int) -> tuple[tuple[tree.ExprNode, ...], int]:
        self.advance()
        self._open.append(close)
        arguments: list[tree.ExprNode] = []
        height = 0
        while not self.at(close):
            if arguments:
                self.expect(",")
            argument, more = self._level(ASSIGN, depth + 1)
            arguments.append(argument)
            height = max(height, more)
        self._open.pop()
        self.advance()
        return tuple(arguments), height

    def _primary(self, depth: int) -> _Sized:
        token = self.token
        if token.kind == "int":
            self.advance()
            assert token.integer is not None
            expr: tree.ExprNode = tree.IntegerNode(token.span, token.integer, token.text)
            if token.sign:
                return tree.PrefixNode(token.span, token.sign, expr), 2
            return expr, 1
        if token.kind == "string":
            self.advance()
            return tree.StringNode(token.span, token.data), 1
        if token.kind == "agg":
            self.advance()
            name = token.text[1:]
            return tree.AggregationNode(token.span, "" if name == "_" else name), 1
        if token.kind == "name" and token.text == "xlate":
            return self._xlate(depth)
        if token.kind == "name":
            return self._name(token), 1
        if self.at("("):
            self.advance()
            self._open.append(")")
            expr, height = self._level(COMMA, depth + 1)
            self.expect(")")
            self._open.pop()
            return expr, height
        raise self.unexpected()

    def _name(self, token: Token) -> tree.ExprNode:
        """Parse a name in an expression. A keyword is an error. The name of a type is an error too,
        unless the program assigns to it: then it names a variable, from there on.
        """
        if token.text == "offsetof":
            return self._offsetof()
        if token.text in KEYWORDS:
            after = self.lexer.expression(token.end)
            if token.text not in ACTION_KEYWORDS or after.kind != "op" or after.text != "(":
                hint = f"{token.text}(...)" if token.text in ACTION_KEYWORDS else ""
                is_loop = token.text in ("for", "while", "do")
                loop = (
                    "D has no loops: a clause runs each time its probe fires, tick-1s each second"
                )
                raise self.unexpected(
                    hint or (loop if is_loop else f"{token.text} is a reserved word")
                )
        self.args_used = self.args_used or token.text == "args"
        self.advance()
        if (token.text in TYPEDEFS or token.text in self.typedefs) and (
            token.text not in self._variables
        ):
            if not self.at("=", "++", "--", "["):
                self.token = token
                raise self.unexpected(f"{token.text} is a type")
            self._variables.add(token.text)
        return tree.NameNode(token.span, token.text)

    def _xlate(self, depth: int) -> _Sized:
        """Parse `xlate < type > (expression)`."""
        start = self.advance().start
        self.expect("<")
        type_ = self.type_name()
        self.expect(">")
        self.expect("(")
        self._open.append(")")
        operand, height = self._level(COMMA, depth + 1)
        end = self.expect(")").end
        self._open.pop()
        span = self.from_to(start, end)
        return tree.XlateNode(span, type_, operand), self._higher(span, height)

    def _type_in_parentheses(self) -> bool:
        if not self.at("("):
            return False
        after = self.lexer.expression(self.token.end)
        if after.kind != "name" or after.text in self._variables:
            return False
        if after.text in KEYWORDS:
            return after.text in STARTS_TYPE
        then = self.lexer.expression(after.end)
        if then.kind == "op" and then.text in ("=", "++", "--", "["):
            return False
        if after.text in TYPEDEFS or after.text in self.typedefs:
            return True
        # Ask the kernel for a type of this name only if a type may stand here.
        fits = then.kind == "name" or (then.kind == "op" and then.text in (")", "*", "("))
        return fits and not builtins.kind_of(after.text) and self.names_type(after.text)

    def _parenthesized_type(self) -> tuple[tree.TypeNode, int]:
        """Parse a type in parentheses; return the type and the offset after the closing
        parenthesis.
        """
        self.expect("(")
        type_ = self.type_name()
        return type_, self.expect(")").end

    def _offsetof(self) -> tree.ExprNode:
        """Parse `offsetof(type, member)`."""
        start = self.advance().start
        self.expect("(")
        type_ = self.type_name()
        self.expect(",")
        path: list[str] = []
        while True:
            if self.token.kind != "name":
                raise self.unexpected("a member expected")
            path.append(self.advance().text)
            if not self.at("."):
                break
            self.advance()
        end = self.expect(")").end
        return tree.OffsetOfNode(self.from_to(start, end), type_, ".".join(path))
