"""Programs: clauses, declarations and control lines."""

from __future__ import annotations

from enum import IntEnum

from kinst.core.errors import DError
from kinst.core.probe import ProbePattern
from kinst.dlang import tree
from kinst.dlang.control import read_control_line
from kinst.dlang.exprparser import KEYWORDS, MAX_DEPTH, ExpressionParser
from kinst.dlang.lexer import Lexer, Token
from kinst.dlang.macros import Macros, MacroUse
from kinst.dlang.source import Source, words
from kinst.dlang.typenames import STARTS_TYPE, UNSUPPORTED_TYPES

__all__ = ["MAX_DEPTH", "Level", "parse"]


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
_NOT_YET = words(
    "inline translator provider typedef self this extern import counter auto register static"
)
# The first words of everything at the outer level that is not a clause.
_NOT_CLAUSES = STARTS_TYPE | _NOT_YET


def parse(
    text: str,
    file: str,
    macros: Macros | None = None,
    *,
    level: Level = Level.NAME,
    script: bool = False,
) -> tree.Program:
    """The syntax tree of one program text.

    file: what errors call it.  level: how probe descriptions fill up.  script: text of a
    file, where, as in dtrace(1), a probe description must have a body.
    Raises DError (any input gives a program or a DError): D_SYNTAX, D_EMPTY, D_PDESC_INVAL,
    D_MACRO_*, D_INT_*, D_STR_NL, D_CHR_*, D_PRAG*, D_DECL_*, D_UNKNOWN.
    """
    use = MacroUse(macros or Macros())
    lexer = Lexer(Source(text, file), use)
    return _ProgramParser(lexer, use, level, script).program()


class _ProgramParser(ExpressionParser):
    def __init__(self, lexer: Lexer, use: MacroUse, level: Level, script: bool) -> None:
        super().__init__(lexer)
        self._use = use
        self._level_of_text = level
        self._script = script
        self._items: list[tree.Item] = []
        self._controls_done = 0

    def program(self) -> tree.Program:
        at = self._skip(0)
        while at < len(self.source.text):
            head = self.lexer.head(at)
            if head.kind == "description" and self._declares(head):
                at = self._declaration(head)
            else:
                at = self._clause(head)
            at = self._skip(at)
        if not any(isinstance(item, tree.Clause) for item in self._items):
            span = self.source.span(0, 1)
            raise DError("empty D program translation unit", span, "D_EMPTY", "no probe in it")
        self._use.check_used(self.source.span(0, 1))
        return tree.Program(tuple(self._items))

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
                self._items.append(option)
                if option.name == "defaultargs":
                    self._use.defaultargs = True
        self._controls_done += len(lines)

    def _declares(self, head: Token) -> bool:
        """int, uint64_t*x and struct begin a declaration; int* alone is one too, as libdtrace
        decides it."""
        if self._level_of_text is not Level.NAME or ":" in head.text:
            return False
        return head.text.split("*", 1)[0] in _NOT_CLAUSES

    def _declaration(self, head: Token) -> int:
        self.token = self.lexer.expression(head.start)
        word = self.token.text
        if word in _NOT_YET:
            what = f"{word}->" if word in ("self", "this") else word
            raise DError(f"{what} is not supported yet", self.token.span, "D_UNKNOWN")
        if word in UNSUPPORTED_TYPES:
            kind = "floating-point" if word in ("float", "double") else word
            message = f"{kind} types are not supported yet"
            raise DError(message, self.token.span, "D_UNKNOWN")
        words, span = self.type_words()
        if self.at(";"):
            raise DError("useless declaration", span, "D_DECL_USELESS", "a name is missing")
        while True:
            type_ = tree.TypeName(words, self.stars(), span)
            name = self.token
            if name.kind != "name" or name.text in KEYWORDS:
                raise self.unexpected("a variable name expected")
            if "`" in name.text:
                message = f"D scoping operator may not be used in a declaration name ({name.text})"
                raise DError(message, name.span, "D_DECL_SCOPE")
            self.advance()
            if self.at("["):
                raise DError("arrays are not supported yet", self.token.span, "D_UNKNOWN")
            if self.at("="):
                hint = f"{name.text} = ... in a BEGIN clause"
                raise self.unexpected(f"a declaration has no initial value; write {hint}")
            self._items.append(tree.Declaration(name.span, type_, name.text))
            if not self.at(","):
                break
            self.advance()
        if not self.at(";"):
            raise self.unexpected("; expected")
        return self.token.end

    def _clause(self, head: Token) -> int:
        """One clause; returns the offset behind it."""
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
        statements: tuple[tree.Expr, ...] = ()
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
        self._items.append(tree.Clause(span, tuple(descriptions), predicate, statements))
        return end

    def _predicate(self, slash: Token) -> tuple[tree.Expr, Token]:
        self.token = self.lexer.expression(slash.end)
        self.in_predicate = True
        predicate = self.expression()
        self.in_predicate = False
        if not self.at("/"):
            raise self.unexpected("/ expected at the end of the predicate")
        return predicate, self.lexer.head(self.token.end)

    def _body(self, brace: Token) -> tuple[tuple[tree.Expr, ...], int]:
        self.token = self.lexer.expression(brace.end)
        statements: list[tree.Expr] = []
        while not self.at("}"):
            if self.at(";"):
                self.advance()
                continue
            statements.append(self.expression())
            if not self.at(";", "}"):
                raise self.unexpected("; or } expected")
        return tuple(statements), self.token.end

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
