"""Parser of programs: clauses, control lines, and the command line's probe options.

The parser splits a clause with an if into several clauses, in the order of its statements, as
FreeBSD's libdtrace does (dt_sugar.c). The clauses share two kinds of clause-local variables, whose
% keeps them apart from a program's variables:

this->%condition_1 is 1 if the clause's predicate was true. Each if has a further
this->%condition_N: 1 selects the first branch, 2 the else branch; 0 means that this firing has not
reached the if.

this->%error is 1 while one of the clauses runs. After a fault it stays 1, and the clauses that
follow do not run.

Tested by tests/dlang/syntax/test_parse.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from enum import IntEnum

from kinst.core.dataclass import dataclass
from kinst.core.errors import DError, KinstError, Span
from kinst.core.probe import ProbePattern
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.declaration_parser import DeclarationParser
from kinst.dlang.syntax.lexer import Lexer, Macros, MacroUse, Token
from kinst.dlang.syntax.source import LINE_MARKER, SourceText, read_integer
from kinst.dlang.syntax.tree import OptionNode, PragmaNode
from kinst.dlang.vocabulary.d_options import OWN_NAMES, Options
from kinst.dlang.vocabulary.other_tracers import plain_description
from kinst.dlang.vocabulary.type_names import words

ERROR = "%error"

CONDITION = "%condition_"


@dataclass(slots=True)
class _IfSplitter:
    clause: tree.ClauseNode
    next: int
    parts: list[tree.ClauseNode] = field(default_factory=list)
    statements: list[tree.ExprNode] = field(default_factory=list)
    predicate: tree.ExprNode | None = None

    def block(self, statements: tuple[tree.Statement, ...], inside: tree.ExprNode) -> None:
        """Add the statements of a block, which is the clause's body or a branch of an if. An if
        ends the current clause: each of its branches and the statements after it get clauses of
        their own.

        Args:
            statements: the statements of the block.
            inside: a D expression that is true if control has come to this block. It is the
                predicate for statements after an if.
        """
        for statement in statements:
            if not isinstance(statement, tree.IfNode):
                self.statements.append(statement)
                continue
            number, span = self.next, statement.span
            self.next += 1
            choice = tree.TernaryNode(span, statement.condition, _number(1, span), _number(2, span))
            self.statements.append(_set(f"{CONDITION}{number}", choice, span))
            for which, branch in ((1, statement.then), (2, statement.otherwise)):
                if branch:
                    under = _is(number, which, span)
                    self.close(under)
                    self.block(branch, under)
            self.close(inside)

    def close(self, following: tree.ExprNode) -> None:
        """End the current clause, and keep it if it has statements. The next clause gets the
        predicate `following`.
        """
        if self.statements:
            span = self.clause.span
            body = [_set(ERROR, _number(1, span), span), *self.statements]
            body.append(_set(ERROR, _number(0, span), span))
            self.parts.append(
                tree.ClauseNode(span, self.clause.descriptions, self.predicate, tuple(body))
            )
        self.statements = []
        span = following.span
        fine = tree.PrefixNode(span, "!", _this(ERROR, span))
        self.predicate = tree.InfixNode(span, "&&", fine, following)


def split(clause: tree.ClauseNode, statements: tuple[tree.Statement, ...]) -> list[tree.ClauseNode]:
    """Split a clause whose statements contain an if into clauses without an if.

    The first returned clause has no predicate and sets all this->%condition_N to 0, because another
    split clause of the probe may have left values there. The second clause has the original
    predicate. If it is false, the variables stay 0, and the later clauses do not run either.

    Args:
        clause: the clause without its statements.
        statements: its statements.
    """
    span = clause.span
    splitter = _IfSplitter(clause, 2, predicate=clause.predicate)
    splitter.statements.append(_set(f"{CONDITION}1", _number(1, span), span))
    inside = _is(1, 1, span)
    splitter.block(statements, inside)
    splitter.close(inside)
    resets = tuple(_set(f"{CONDITION}{n}", _number(0, span), span) for n in range(1, splitter.next))
    return [tree.ClauseNode(span, clause.descriptions, None, resets), *splitter.parts]


def _number(value: int, span: Span) -> tree.ExprNode:
    return tree.IntegerNode(span, read_integer(str(value), span), str(value))


def _this(name: str, span: Span) -> tree.ExprNode:
    return tree.MemberNode(span, tree.NameNode(span, "this"), "->", name)


def _set(name: str, value: tree.ExprNode, span: Span) -> tree.ExprNode:
    return tree.AssignmentNode(span, "=", _this(name, span), value)


def _is(number: int, which: int, span: Span) -> tree.ExprNode:
    return tree.InfixNode(span, "==", _this(f"{CONDITION}{number}", span), _number(which, span))


_PRAGMA_KINDS = words("attributes binding depends_on")

_PRAGMA_FORMS = {
    "attributes": "<attributes> <ident>",
    "binding": '"version" <ident>',
    "depends_on": "<class> <name>",
}

_STABILITIES = words("internal private obsolete external unstable evolving stable standard")

_DEPENDENCY_CLASSES = words("unknown cpu platform group isa common")

_VERSION_NUMBER = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?\Z")

_LARGEST_VERSION = (255, 4095, 4095)  # DT_VERSION_MAJMAX, DT_VERSION_MINMAX, DT_VERSION_MICMAX


def _read_pragma(kind: str, given: list[str], span: Span) -> tree.PragmaNode:
    """Parse a pragma.

    Raises DError D_PRAGMA_MALFORM, D_PRAGMA_INVAL.

    Args:
        kind: its first word: "attributes", "binding" or "depends_on".
        given: its other words; strings have their quotes.
    """
    kinds = ["string" if w[0] == '"' else "int" if w[0].isdigit() else "name" for w in given[:2]]
    if kinds != ["string" if kind == "binding" else "name", "name"]:
        raise DError(f"malformed #pragma {kind} {_PRAGMA_FORMS[kind]}", span, "D_PRAGMA_MALFORM")
    if kind == "attributes":
        _check_attributes(given, span)
    elif kind == "binding" and not _is_version(given[0].strip('"')):
        message = "invalid version string specified by #pragma binding"
        raise DError(message, span, "D_PRAGMA_INVAL", '"1.0" is one')
    elif kind == "depends_on" and given[0] not in ("provider", "module", "library"):
        message = f"invalid class {given[0]} specified by #pragma depends_on"
        raise DError(message, span, "D_PRAGMA_INVAL", "provider, module or library")
    return tree.PragmaNode(span, kind, tuple(given))


def _check_attributes(given: list[str], span: Span) -> None:
    parts = given[0].lower().split("/")
    good = len(parts) == 3 and {*parts[:2]} <= _STABILITIES and parts[2] in _DEPENDENCY_CLASSES
    if not good:
        message = "invalid attributes specified by #pragma attributes"
        raise DError(message, span, "D_PRAGMA_INVAL", "Evolving/Evolving/Common is an example")
    if given[1] == "provider" and len(given) < 4:
        message = "malformed #pragma attributes <attributes> provider <name> <part>"
        raise DError(message, span, "D_PRAGMA_MALFORM")


def _is_version(text: str) -> bool:
    match = _VERSION_NUMBER.match(text)
    return match is not None and all(
        int(number or 0) <= most
        for number, most in zip(match.groups(), _LARGEST_VERSION, strict=True)
    )


_WORD = re.compile(r'"[^"]*"|[^\s"]+')


def read_control_line(text: str, span: Span) -> OptionNode | PragmaNode | None:
    """Parse a control line; return an option or a pragma, or None for a line that has no effect.

    Raises DError D_PRAGCTL_INVAL, D_PRAGERR, D_PRAGMA_INVAL, D_PRAGMA_MALFORM, D_PRAGMA_OPTSET.

    Args:
        text: the line from its # to its end.
    """
    words = _WORD.findall(text[1:])
    if not words:
        return None
    if words[0] == "pragma":
        if words[1:2] == ["D"]:
            return _d_pragma(words[2:], span)
        words = words[1:]
        if not words or words[0] not in ("error", "line"):
            return None
    if words[0] == "ident":
        return None
    if words[0] == "error":
        raise DError(f"#error: {' '.join(words[1:])}", span, "D_PRAGERR")
    if words[0] == "line" or words[0].isdigit():
        if LINE_MARKER.match(text):
            return None  # SourceText reads line markers
        raise DError("malformed #line directive", span, "D_PRAGMA_MALFORM", '#line 5 "file"')
    raise DError(f"invalid control directive: #{words[0]}", span, "D_PRAGCTL_INVAL")


def _d_pragma(words: list[str], span: Span) -> OptionNode | PragmaNode | None:
    if not words:
        return None
    if words[0] in _PRAGMA_KINDS:
        return _read_pragma(words[0], words[1:], span)
    if words[0] != "option":
        raise DError(f"invalid D pragma: {words[0]}", span, "D_PRAGMA_INVAL")
    if len(words) < 2 or words[1].startswith('"'):
        message = "malformed #pragma option <option>=<val>"
        raise DError(message, span, "D_PRAGMA_MALFORM")
    if len(words) > 2:
        message = "superfluous arguments specified for #pragma option"
        raise DError(message, span, "D_PRAGMA_MALFORM", "name=value without spaces")
    name, equals, value = words[1].partition("=")
    if name in OWN_NAMES:
        return OptionNode(span, name, value)
    try:
        Options().with_option(name, value if equals else None)
    except KinstError as error:
        to = f" to '{value}'" if equals else ""
        message = f"failed to set option '{name}'{to}: {error.message}"
        raise DError(message, span, "D_PRAGMA_OPTSET", error.hint) from None
    return OptionNode(span, name, value)


MAX_BRANCHES = 40  # largest number of nested ifs; each "else if" is a further level


class Level(IntEnum):
    """What the probe descriptions in a command line option end with: dtrace(1)'s -P ends with the
    provider, -m with the module, -f with the function, -n with the name.
    """

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
) -> tree.ProgramNode:
    """Parse the text of a program and return its syntax tree.

    Args:
        file: name of the text's file, for error messages.
        level: the last part that the text's probe descriptions name.
        script: whether the text is a script's, in which each clause needs a body, as in dtrace(1).
        part: whether other texts follow, so that this text may consist of declarations alone.
        knows_type: tells whether a word is the name of a type that the kernel or a D library
            declares; None if there are no such types.

    Raises:
        DError: D_SYNTAX, D_EMPTY, D_PDESC_INVAL, D_MACRO_*, D_INT_*, D_STR_NL, D_CHR_*, D_PRAG*,
            D_DECL_*, D_UNKNOWN. No text causes any other exception.
    """
    use = MacroUse(macros or Macros())
    lexer = Lexer(SourceText(text, file), use)
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

    def program(self, part: bool) -> tree.ProgramNode:
        at = self._skip(0)
        while at < len(self.source.text):
            head = self.lexer.head(at)
            if head.text == "TEST" and self.source.text.startswith('"', self.lexer.skip(head.end)):
                hint = "kinst test FILE runs such programs"
                raise DError("TEST clauses are no part of D", head.span, "D_SYNTAX", hint)
            if self._level_of_text is Level.NAME and self.declares(head):
                at = self.declaration(head)
            else:
                at = self._clause(head)
            at = self._skip(at)
        declared = part and not all(
            isinstance(i, tree.OptionNode | tree.PragmaNode) for i in self.items
        )
        if not declared and not any(isinstance(item, tree.ClauseNode) for item in self.items):
            span = self.source.span(0, 1)
            if not self.items:
                raise tree.empty(span)
            return tree.ProgramNode(tuple(self.items), span)
        self._use.check_used(self.source.span(0, 1))
        return tree.ProgramNode(tuple(self.items))

    def _skip(self, at: int) -> int:
        """Skip to the next declaration or clause and parse the control lines before it; return its
        offset.
        """
        at = self.lexer.skip(at)
        self._take_controls()
        return at

    def _take_controls(self) -> None:
        lines = list(self.lexer.control_lines.items())[self._controls_done :]
        for start, text in sorted(lines):
            option = read_control_line(text, self.source.span(start, start + len(text)))
            if option is not None:
                self.items.append(option)
                if isinstance(option, tree.OptionNode) and option.name == "defaultargs":
                    self._use.defaultargs = True
                if isinstance(option, tree.OptionNode) and option.name == "argref":
                    self._use.argref = True
        self._controls_done += len(lines)

    def _clause(self, head: Token) -> int:
        """Parse one clause and return the offset after it."""
        self.args_used = False
        descriptions, last, following = self._descriptions(head)
        predicate: tree.ExprNode | None = None
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
            raise self.unexpected(", or / or { expected after a probe description")
        self._take_controls()
        span = descriptions[0].span
        plain = tuple(s for s in statements if not isinstance(s, tree.IfNode))
        # args[] has the types of one description's probes, so each description becomes a clause, as
        # in libdtrace.
        each = [(d,) for d in descriptions] if self.args_used else [tuple(descriptions)]
        for same_clause in each:
            clause = tree.ClauseNode(span, same_clause, predicate, plain)
            if len(plain) == len(statements):
                self.items.append(clause)
            else:
                self.items += split(replace(clause, statements=()), statements)
        return end

    def _descriptions(self, head: Token) -> tuple[list[tree.DescriptionNode], Token, Token]:
        """Parse probe descriptions with commas between them; return them, the token of the last
        one, and the token after it.
        """
        descriptions = [self._description(head)]
        last, following = head, self.lexer.head(head.end)
        while following.kind == "op" and following.text == ",":
            last = self.lexer.head(following.end)
            descriptions.append(self._description(last))
            following = self.lexer.head(last.end)
        return descriptions, last, following

    def sources(self) -> tuple[tuple[tree.DescriptionNode, ...], tree.ExprNode | None]:
        descriptions, _, following = self._descriptions(self.lexer.head(self.token.end))
        predicate: tree.ExprNode | None = None
        if following.kind == "op" and following.text == "/":
            predicate, following = self._predicate(following)
        self.token = following
        return tuple(descriptions), predicate

    def _predicate(self, slash: Token) -> tuple[tree.ExprNode, Token]:
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
        """Parse statements up to the closing brace, and leave the brace as the current token.

        Args:
            depth: number of ifs around the statements.
        """
        statements: list[tree.Statement] = []
        while not self.at("}"):
            if self.at(";"):
                self.advance()
                continue
            statement = self._statement(depth)
            statements.append(statement)
            if not isinstance(statement, tree.IfNode) and not self.at(";", "}"):
                raise self.unexpected("; or } expected")
        return tuple(statements)

    def _statement(self, depth: int) -> tree.Statement:
        """Parse an expression statement, or an if with its branches.

        Args:
            depth: number of ifs around the statement.
        """
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
        return tree.IfNode(word.span, condition, then, otherwise)

    def _branch(self, depth: int) -> tuple[tree.Statement, ...]:
        """Parse the branch of an if: a block in braces, or one statement with its semicolon.

        Args:
            depth: number of ifs around the branch's statements.
        """
        if self.at("{"):
            self.advance()
            statements = self._statements(depth)
            self.advance()
            return statements
        if self.at(";"):
            self.advance()
            return ()
        statement = self._statement(depth)
        if not isinstance(statement, tree.IfNode):
            self.expect(";")
        return (statement,)

    def _description(self, token: Token) -> tree.DescriptionNode:
        if token.kind == "int":
            assert token.integer is not None
            return self._by_id(token, token.integer.value)
        if token.kind != "description":
            self.token = token
            raise self.unexpected("a probe description expected")
        text = self._use.expand(token.text, token.span)
        if text.isascii() and text.isdigit():
            return self._by_id(token, int(text) if len(text) < 12 else 1 << 32)
        if self._level_of_text is Level.NAME:
            text = plain_description(text)
        parts = text.split(":")
        level = self._level_of_text
        if len(parts) > level + 1:
            message = f'invalid probe description "{text[:80]}": {len(parts)} parts'
            raise DError(message, token.span, "D_PDESC_INVAL", f"the form is {_FORMS[level]}")
        parts = [""] * (level + 1 - len(parts)) + parts + [""] * (3 - level)
        return tree.DescriptionNode(
            ProbePattern(parts[0], parts[1], parts[2], parts[3]), token.span
        )

    def _by_id(self, token: Token, number: int) -> tree.DescriptionNode:
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
        return tree.DescriptionNode(ProbePattern(id=number), token.span)


LEVELS = {
    "P": Level.PROVIDER,
    "m": Level.MODULE,
    "f": Level.FUNCTION,
    "n": Level.NAME,
    "i": Level.NAME,
}


def parse_option(
    option: str,
    value: str,
    macros: Macros | None = None,
    *,
    ordinal: int = 1,
    part: bool = False,
    knows_type: Callable[[str], bool] | None = None,
) -> tree.ProgramNode:
    """Parse the program in one command line option, such as ("f", "vfs_read /pid == 1/ {
    trace(arg0); }"); return its syntax tree.

    Errors name the option, "-n argument" or "-n argument 2", with line and column in the value.

    Args:
        option: the option's letter.
        value: the option's value.
        ordinal: number of the option among the options with this letter, from 1.
        part: whether other texts follow, so that this text may consist of declarations alone.
        knows_type: tells whether a word is the name of a type that the kernel or a D library
            declares; None if there are no such types.

    Raises:
        DError: the value is not a D program.
        KinstError: the value of -i is not a probe id.
    """
    level = LEVELS[option]
    name = f"-{option} argument" + (f" {ordinal}" if ordinal > 1 else "")
    program = parse(value, name, macros, level=level, part=part, knows_type=knows_type)
    if option == "i":
        for clause in program.clauses:
            for description in clause.descriptions:
                if not description.pattern.id:
                    written = str(description.pattern).lstrip(":")[:80]
                    message = f"{name}: {written!r} is not a probe id"
                    raise KinstError(message, "-n takes probe names")
    return program
