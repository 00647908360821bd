"""Programs: clauses, and with declparser.py declarations; control lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum

from kinst.core.errors import DError
from kinst.core.probe import ProbePattern
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.branches import split
from kinst.dlang.syntax.control_lines import read_control_line
from kinst.dlang.syntax.declaration_parser import DeclarationParser
from kinst.dlang.syntax.lexer import Lexer, Token
from kinst.dlang.syntax.macros import Macros, MacroUse
from kinst.dlang.syntax.source import Source
from kinst.dlang.syntax.type_parser import MAX_DEPTH

__all__ = ["MAX_DEPTH", "Level", "parse"]

MAX_BRANCHES = 40  # levels of if; each else if is one


class Level(IntEnum):
    """Which part of a probe description is written last (dtrace(1)'s -P -m -f -n)."""

    PROVIDER = 0
    MODULE = 1
    FUNCTION = 2
    NAME = 3


_FORMS = {
    Level.PROVIDER: "provider",
    Level.MODULE: "[provider:]module",
    Level.FUNCTION: "[[provider:]module:]function",
    Level.NAME: "[[[provider:]module:]function:]name",
}


def parse(
    text: str,
    file: str,
    macros: Macros | None = None,
    *,
    level: Level = Level.NAME,
    script: bool = False,
    part: bool = False,
    knows_type: Callable[[str], bool] | None = None,
) -> tree.Program:
    """The syntax tree of one program text.

    file: what errors call it.  level: how probe descriptions fill up.  script: text of a
    file, where, as in dtrace(1), a probe description must have a body.  part: there are other
    texts, so that this one may have declarations only.  knows_type: whether the traced kernel
    has a typedef of this name.
    Raises DError (any input gives a program or a DError): D_SYNTAX, D_EMPTY, D_PDESC_INVAL,
    D_MACRO_*, D_INT_*, D_STR_NL, D_CHR_*, D_PRAG*, D_DECL_*, D_UNKNOWN.
    """
    use = MacroUse(macros or Macros())
    lexer = Lexer(Source(text, file), use)
    return _ProgramParser(lexer, use, level, script, knows_type).program(part)


class _ProgramParser(DeclarationParser):
    def __init__(
        self,
        lexer: Lexer,
        use: MacroUse,
        level: Level,
        script: bool,
        knows_type: Callable[[str], bool] | None,
    ) -> None:
        super().__init__(lexer, knows_type)
        self._use = use
        self._level_of_text = level
        self._script = script
        self._controls_done = 0

    def program(self, part: bool) -> tree.Program:
        at = self._skip(0)
        while at < len(self.source.text):
            head = self.lexer.head(at)
            if self._level_of_text is Level.NAME and self.declares(head):
                at = self.declaration(head)
            else:
                at = self._clause(head)
            at = self._skip(at)
        declared = part and not all(isinstance(i, tree.Option | tree.Pragma) for i in self.items)
        if not declared and not any(isinstance(item, tree.Clause) for item in self.items):
            span = self.source.span(0, 1)
            if not self.items:
                raise tree.empty(span)
            return tree.Program(tuple(self.items), span)
        self._use.check_used(self.source.span(0, 1))
        return tree.Program(tuple(self.items))

    def _skip(self, at: int) -> int:
        """Skip to the next item, taking the control lines on the way."""
        at = self.lexer.skip(at)
        self._take_controls()
        return at

    def _take_controls(self) -> None:
        lines = list(self.lexer.control_lines.items())[self._controls_done :]
        for start, text in sorted(lines):
            option = read_control_line(text, self.source.span(start, start + len(text)))
            if option is not None:
                self.items.append(option)
                if isinstance(option, tree.Option) and option.name == "defaultargs":
                    self._use.defaultargs = True
                if isinstance(option, tree.Option) and option.name == "argref":
                    self._use.argref = True
        self._controls_done += len(lines)

    def _clause(self, head: Token) -> int:
        """One clause; returns the offset behind it."""
        self.args_used = False
        descriptions = [self._description(head)]
        last = head
        following = self.lexer.head(head.end)
        while following.kind == "op" and following.text == ",":
            last = self.lexer.head(following.end)
            descriptions.append(self._description(last))
            following = self.lexer.head(last.end)
        predicate: tree.Expr | None = None
        if following.kind == "op" and following.text == "/":
            predicate, following = self._predicate(following)
        statements: tuple[tree.Statement, ...] = ()
        if following.kind == "op" and following.text == "{":
            statements, end = self._body(following)
        elif predicate is not None:
            message = "expected actions { } following probe description and predicate"
            raise DError(message, following.span, "D_SYNTAX")
        elif self._script:
            message = "expected predicate and/or actions following probe description"
            raise DError(message, descriptions[0].span, "D_SYNTAX")
        elif following.kind == "end":
            end = last.end
        else:
            self.token = following
            raise self.unexpected(", or / or { expected behind a probe description")
        self._take_controls()
        span = descriptions[0].span
        plain = tuple(s for s in statements if not isinstance(s, tree.If))
        # The types of args[] are those of one description, as libdtrace compiles each for itself.
        each = [(d,) for d in descriptions] if self.args_used else [tuple(descriptions)]
        for some in each:
            clause = tree.Clause(span, some, predicate, plain)
            if len(plain) == len(statements):
                self.items.append(clause)
            else:
                self.items += split(replace(clause, statements=()), statements)
        return end

    def _predicate(self, slash: Token) -> tuple[tree.Expr, Token]:
        self.token = self.lexer.expression(slash.end)
        self.in_predicate = True
        predicate = self.expression()
        self.in_predicate = False
        if not self.at("/"):
            raise self.unexpected("/ expected at the end of the predicate")
        return predicate, self.lexer.head(self.token.end)

    def _body(self, brace: Token) -> tuple[tuple[tree.Statement, ...], int]:
        self.token = self.lexer.expression(brace.end)
        statements = self._statements(0)
        return statements, self.token.end

    def _statements(self, depth: int) -> tuple[tree.Statement, ...]:
        """Up to the closing brace, which stays the current token."""
        statements: list[tree.Statement] = []
        while not self.at("}"):
            if self.at(";"):
                self.advance()
                continue
            statement = self._statement(depth)
            statements.append(statement)
            if not isinstance(statement, tree.If) and not self.at(";", "}"):
                raise self.unexpected("; or } expected")
        return tuple(statements)

    def _statement(self, depth: int) -> tree.Statement:
        """An expression, or an if with all that belongs to it."""
        word = self.token
        if word.kind != "name" or word.text != "if":
            return self.expression()
        if depth > MAX_BRANCHES:
            message = f"if is nested more than {MAX_BRANCHES} levels deep"
            raise DError(message, word.span, "D_SYNTAX")
        self.advance()
        self.expect("(")
        condition = self.expression()
        self.expect(")")
        then = self._branch(depth + 1)
        otherwise: tuple[tree.Statement, ...] = ()
        if self.token.kind == "name" and self.token.text == "else":
            self.advance()
            otherwise = self._branch(depth + 1)
        return tree.If(word.span, condition, then, otherwise)

    def _branch(self, depth: int) -> tuple[tree.Statement, ...]:
        """A block in braces, or one statement with its semicolon."""
        if self.at("{"):
            self.advance()
            statements = self._statements(depth)
            self.advance()
            return statements
        if self.at(";"):
            self.advance()
            return ()
        statement = self._statement(depth)
        if not isinstance(statement, tree.If):
            self.expect(";")
        return (statement,)

    def _description(self, token: Token) -> tree.Description:
        if token.kind == "int":
            assert token.integer is not None
            return self._by_id(token, token.integer.value)
        if token.kind != "description":
            self.token = token
            raise self.unexpected("a probe description expected")
        text = self._use.expand(token.text, token.span)
        if text.isascii() and text.isdigit():
            return self._by_id(token, int(text) if len(text) < 12 else 1 << 32)
        parts = text.split(":")
        level = self._level_of_text
        if len(parts) > level + 1:
            message = f'invalid probe description "{text[:80]}": {len(parts)} parts'
            raise DError(message, token.span, "D_PDESC_INVAL", f"the form is {_FORMS[level]}")
        parts = [""] * (level + 1 - len(parts)) + parts + [""] * (3 - level)
        return tree.Description(ProbePattern(parts[0], parts[1], parts[2], parts[3]), token.span)

    def _by_id(self, token: Token, number: int) -> tree.Description:
        if number >= 2**32:
            message = f"identifier {number} exceeds maximum probe id"
            raise DError(message, token.span, "D_PDESC_INVAL")
        if self._level_of_text is not Level.NAME:
            plural = f"{self._level_of_text.name.lower()}s"
            message = f"probe identifier {number} not permitted when specifying {plural}"
            raise DError(message, token.span, "D_PDESC_INVAL")
        if number == 0:
            message = "invalid probe identifier 0: probe ids start at 1"
            raise DError(message, token.span, "D_PDESC_INVAL")
        return tree.Description(ProbePattern(id=number), token.span)
