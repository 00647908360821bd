"""Lexer of D, and the macros $1, $target and the like (Dynamic Tracing Guide, "Scripting").

Tested by tests/dlang/syntax/test_parse.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.core.errors import DError, Span
from kinst.dlang.syntax.source import (
    IntLiteral,
    SourceText,
    character_value,
    read_integer,
    string_value,
    to_bytes,
)
from kinst.dlang.vocabulary.other_tracers import macro_hint

_REFERENCE = re.compile(r"\$\$?([0-9]+|[a-zA-Z_][0-9a-zA-Z_]*)")

NUMBER_OR_NAME = re.compile(
    r"(?:[-+]?(?:0[xX][0-9A-Fa-f]+|[0-9]+)[uU]?[lL]?[lL]?|[a-zA-Z_`][0-9a-zA-Z_`]*)\Z"
)


@dataclass(frozen=True, slots=True)
class Macros:
    """The values of the macros $0, $1, ..., $pid, $target and the like."""

    # $0 (the script's name) and the operands of the command, $1, $2, ...
    arguments: tuple[str, ...] = ()
    # pid, target, uid, euid, gid, egid, ppid, pgid, sid, tid, ... by name.
    variables: Mapping[str, int] = field(default_factory=dict)
    defaultargs: bool = False  # undefined arguments are 0 or "", and unused arguments are no error
    argref: bool = False  # unused arguments are no error


def own_numbers() -> dict[str, int]:
    """Return the values of the macros that tell about kinst's own process: $pid and the like."""
    return {
        "pid": os.getpid(), "ppid": os.getppid(), "uid": os.getuid(), "euid": os.geteuid(),
        "gid": os.getgid(), "egid": os.getegid(), "pgid": os.getpgrp(), "sid": os.getsid(0),
        "projid": 0, "taskid": 0,
    }  # fmt: skip


class MacroUse:
    """Expander of macros. It also records which macro arguments ($1, $2, ...) a program uses."""

    def __init__(self, macros: Macros) -> None:
        self.macros = macros
        self.defaultargs = macros.defaultargs
        self.argref = macros.argref
        self._used: set[int] = set()

    def argument(self, reference: str, span: Span, default: str) -> str:
        """Return the text of the macro argument $N. Raises DError D_MACRO_UNDEF.

        Args:
            reference: the macro as the program writes it, with the $.
            default: the text of an undefined argument under -x defaultargs.
        """
        digits = reference.lstrip("$").lstrip("0") or "0"
        index = int(digits) if len(digits) < 10 else 10**9
        if index < len(self.macros.arguments):
            self._used.add(index)
            return self.macros.arguments[index]
        if self.defaultargs:
            return default
        raise DError(
            f"macro argument {reference[:24]} is not defined",
            span,
            "D_MACRO_UNDEF",
            f"{max(0, len(self.macros.arguments) - 1)} given; -x defaultargs makes it 0",
        )

    def variable(self, reference: str, span: Span) -> int:
        """Return the value of the macro variable $name. Raises DError D_MACRO_UNDEF.

        Args:
            reference: the macro as the program writes it, with the $.
        """
        name = reference.lstrip("$")
        if name not in self.macros.variables:
            names = " ".join(f"${v}" for v in sorted(self.macros.variables))
            raise DError(
                f"macro variable {reference[:40]} is not defined",
                span,
                "D_MACRO_UNDEF",
                macro_hint(name) or (f"defined: {names}" if names else ""),
            )
        return self.macros.variables[name]

    def expand(self, text: str, span: Span) -> str:
        """Return a probe description with every macro replaced by its text. Raises DError
        D_MACRO_UNDEF.
        """

        def replace(match: re.Match[str]) -> str:
            if match.group(1)[0].isdigit():
                return self.argument(match.group(), span, "")
            return str(self.variable(match.group(), span))

        return _REFERENCE.sub(replace, text)

    def check_used(self, span: Span) -> None:
        """Raise DError D_MACRO_UNUSED if the program does not use the last argument of the command
        line. As in dtrace(1), the command line then has too many arguments.
        """
        last = len(self.macros.arguments) - 1
        if last >= 1 and last not in self._used and not (self.defaultargs or self.argref):
            raise DError(
                f"extraneous argument '{self.macros.arguments[last]}' (${last} is not referenced)",
                span,
                "D_MACRO_UNUSED",
                "a command goes to -c, in quotes: -c 'wc /etc/passwd'",
            )


_SPACE = re.compile(r"[ \t\n\r\f\v]+|\\\n")

_COMMENT_STOP = re.compile(r"/\*|\*/")

_INTEGER = re.compile(r"(?:0[xX][0-9A-Fa-f]+|[0-9]+)[uU]?[lL]?[lL]?")

_FLOAT = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fFlL]?")

_NAME = re.compile(r"[a-zA-Z_`][0-9a-zA-Z_`]*")

_AGGREGATION = re.compile(r"@(?:[a-zA-Z_][0-9a-zA-Z_]*)?")

_MACRO = re.compile(r"\$\$?(?:[0-9]+|[a-zA-Z_][0-9a-zA-Z_]*)")

_STRING = re.compile(r'"((?:[^"\\\n]|\\[^\n])*)"')

_CHARACTER = re.compile(r"'((?:[^'\\\n]|\\[^\n])*)'")

_DESCRIPTION = re.compile(r"[-$:a-zA-Z_.?*\\\[\]!@][-$:0-9a-zA-Z_.`?*\\\[\]!@]*")

# Probe descriptions in the form of other tools: FUNCTION+OFFSET (or FUNCTION:+OFFSET), or
# FUNCTION+OFFSET/SIZE as in a kernel's stack traces; FILE:FUNCTION:LINE and FILE:LINE.
_PLUS_OFFSET = re.compile(
    r"(?<=[0-9a-zA-Z_:])\+(?:0[xX][0-9a-fA-F]+|[0-9]+)(?:/0[xX][0-9a-fA-F]+)?"
)
_IN_FILE = re.compile(r"(?:kinst)?:*[-0-9a-zA-Z_./]+\.[chS]:(?:[0-9a-zA-Z_.@]+:|\*?:)?[0-9]+")
_IN_NO_LINE = re.compile(r"(?:kinst)?:*[-0-9a-zA-Z_.]*/[-0-9a-zA-Z_./]+\.[chS]:[0-9a-zA-Z_.@]*:?")

_OPERATORS = (
    "<<=", ">>=", "...",
    "&&", "||", "^^", "==", "!=", "<=", ">=", "<<", ">>", "++", "--", "->",
    "+=", "-=", "*=", "/=", "%=", "&=", "^=", "|=",
    *"|^&<>+-*/%~!?:.=,;()[]{}",
)  # fmt: skip

_OPERATOR = re.compile("|".join(re.escape(o) for o in _OPERATORS))


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # int, string, name, agg, op, description or end
    text: str  # text in the program; for a macro, the macro's value
    span: Span
    start: int
    end: int
    integer: IntLiteral | None = None
    data: bytes = b""  # bytes of a string constant
    sign: str = ""  # sign of a macro argument such as -5

    def __str__(self) -> str:
        return self.text if self.kind != "end" else "end of input"


class Lexer:
    """Lexer, which returns the token at any offset of a text."""

    def __init__(self, source: SourceText, macros: MacroUse) -> None:
        self.source = source
        self.macros = macros
        self.control_lines: dict[int, str] = {}  # the control lines skipped so far, by offset

    def skip(self, at: int) -> int:
        """Skip spaces, comments and control lines from offset `at` on; return the offset after
        them.

        Raises DError D_SYNTAX for a comment that does not end.
        """
        text = self.source.text
        while at < len(text):
            if match := _SPACE.match(text, at):
                at = match.end()
            elif text.startswith("/*", at):
                at = self._comment_end(at)
            elif text[at] == "#" and self._starts_line(at):
                end = text.find("\n", at)
                end = len(text) if end < 0 else end
                if not text.startswith("#!", at):
                    self.control_lines[at] = text[at:end]
                at = end
            else:
                break
        return at

    def _comment_end(self, at: int) -> int:
        text = self.source.text
        match = _COMMENT_STOP.search(text, at + 2)
        if match is None:
            span = self.source.span(at, at + 2)
            message = "end-of-file encountered before matching */"
            raise DError(message, span, "D_SYNTAX")
        if match.group() == "/*":
            span = self.source.span(match.start(), match.end())
            raise DError("/* encountered inside a comment", span, "D_SYNTAX")
        return match.end()

    def _starts_line(self, at: int) -> bool:
        line = self.source.text.rfind("\n", 0, at) + 1
        return not self.source.text[line:at].strip(" \t\f\v\r")

    def head(self, at: int) -> Token:
        """Return the token at or after offset `at` in a clause head: a description, an integer or
        an operator. Raises DError D_SYNTAX, D_PDESC_INVAL.
        """
        at = self.skip(at)
        text = self.source.text
        if at >= len(text):
            return self._token("end", at, at)
        if text[at] in ",/{};":
            return self._token("op", at, at + 1)
        if match := _INTEGER.match(text, at):
            token = self._token("int", at, match.end())
            return self._with_integer(token, read_integer(match.group(), token.span))
        if match := _IN_FILE.match(text, at):
            return self._token("description", at, match.end())
        if match := _IN_NO_LINE.match(text, at):
            span = self._token("description", at, match.end()).span
            message = f"probe description {match.group()[:80]} has a file without a line"
            form = "FILE:LINE; kinst::FUNCTION: means all instructions of a function"
            raise DError(message, span, "D_PDESC_INVAL", f"the form is {form}")
        if match := _DESCRIPTION.match(text, at):
            offset = _PLUS_OFFSET.match(text, match.end())
            return self._token("description", at, (offset or match).end())
        raise self._unexpected(at)

    def expression(self, at: int) -> Token:
        """Return the token at or after offset `at` in an expression, statement or declaration.

        Raises DError D_SYNTAX, D_INT_*, D_STR_NL, D_CHR_*, D_MACRO_*.
        """
        at = self.skip(at)
        text = self.source.text
        if at >= len(text):
            return self._token("end", at, at)
        c = text[at]
        if (c.isascii() and c.isdigit()) or (c == "." and _FLOAT.match(text, at)):
            return self._number(at)
        if match := _NAME.match(text, at):
            return self._token("name", at, match.end())
        if c == '"':
            return self._string(at)
        if c == "'":
            return self._character(at)
        if match := _AGGREGATION.match(text, at):
            return self._token("agg", at, match.end())
        if match := _MACRO.match(text, at):
            return self._macro(at, match.end())
        if match := _OPERATOR.match(text, at):
            return self._token("op", at, match.end())
        raise self._unexpected(at)

    def ends_predicate(self, at: int) -> bool:
        """Return whether the / just before offset `at` closes a predicate. As in dtrace(1), it does
        if { ; / or the end of the text follows.
        """
        at = self.skip(at)
        return at >= len(self.source.text) or self.source.text[at] in ";{/"

    def _token(self, kind: str, start: int, end: int) -> Token:
        return Token(kind, self.source.text[start:end], self.source.span(start, end), start, end)

    def _with_integer(self, token: Token, literal: IntLiteral, text: str = "") -> Token:
        return Token(
            "int", text or token.text, token.span, token.start, token.end, literal,
        )  # fmt: skip

    def _unexpected(self, at: int) -> DError:
        c = self.source.text[at]
        shown = c if c.isprintable() else f"\\{ord(c):03o}"
        return DError(f'syntax error near "{shown}"', self.source.span(at, at + 1), "D_SYNTAX")

    def _number(self, at: int) -> Token:
        text = self.source.text
        real = _FLOAT.match(text, at)
        whole = _INTEGER.match(text, at)
        if real is not None and (whole is None or real.end() > whole.end()):
            span = self.source.span(at, real.end())
            raise DError("floating-point constants are not permitted", span, "D_SYNTAX")
        assert whole is not None
        token = self._token("int", at, whole.end())
        return self._with_integer(token, read_integer(whole.group(), token.span))

    def _string(self, at: int) -> Token:
        match = _STRING.match(self.source.text, at)
        if match is None:
            raise self._unclosed(at, "string literal", "D_STR_NL")
        token = self._token("string", at, match.end())
        data = string_value(match.group(1))
        return Token("string", token.text, token.span, at, match.end(), data=data)

    def _character(self, at: int) -> Token:
        match = _CHARACTER.match(self.source.text, at)
        if match is None:
            raise self._unclosed(at, "character constant", "D_CHR_NL")
        token = self._token("int", at, match.end())
        return self._with_integer(token, character_value(match.group(1), token.span))

    def _unclosed(self, at: int, what: str, tag: str) -> DError:
        end = self.source.text.find("\n", at)
        if end < 0:
            span = self.source.span(at, at + 1)
            return DError(f"end-of-file encountered in {what}", span, "D_SYNTAX")
        return DError(f"newline encountered in {what}", self.source.span(at, end), tag)

    def _macro(self, start: int, end: int) -> Token:
        """Return the token that replaces a macro: for $$x always a string; for $1 and $x an integer
        or a name if the text of the macro is one, otherwise a string.
        """
        token = self._token("name", start, end)
        reference = token.text
        as_string = reference.startswith("$$")
        if reference.lstrip("$")[0].isdigit():
            value = self.macros.argument(reference, token.span, "" if as_string else "0")
        else:
            value = str(self.macros.variable(reference, token.span))
        if not as_string and NUMBER_OR_NAME.match(value):
            if value[0] not in "+-0123456789":
                return Token("name", value, token.span, start, end)
            sign = value[0] if value[0] in "+-" else ""
            literal = self._macro_integer(reference, value[len(sign) :], token.span)
            text = value[len(sign) :]
            return Token("int", text, token.span, start, end, literal, sign=sign)
        if not as_string and len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        data = to_bytes(value) if "\\" not in value else string_value(value)
        return Token("string", value, token.span, start, end, data=data.split(b"\0", 1)[0])

    def _macro_integer(self, reference: str, value: str, span: Span) -> IntLiteral:
        try:
            return read_integer(value, span)
        except DError as error:
            if error.tag != "D_INT_OFLOW":
                raise
            message = (
                f"macro argument {reference} constant {value[:40]} results in integer overflow"
            )
            raise DError(message, span, "D_MACRO_OFLOW") from None
