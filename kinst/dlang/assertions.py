"""TEST clauses: what must hold when a trace is over (docs/testing.md).

    TEST "every read is checked once" /@reads/
    {
        @reads == @checks;
        @bytes["cat"] > size * 2;
    }

A test file is D with such clauses between the others.  Reading one gives the D program without
them and behind it, for each statement, an END clause that traces those parts of it that have no
aggregation in them: so variables, inlines, macros and types mean what they mean everywhere in D.
What is left for kinst.views.verdicts is operators over aggregations and over those values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from kinst.core.errors import DError, Span
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.expression_parser import INFIX, ExpressionParser
from kinst.dlang.syntax.lexer import Lexer, Macros, MacroUse, Token
from kinst.dlang.syntax.source import SourceText
from kinst.dlang.syntax.unparse import unparse_expression

# What is no place for a clause: comments, strings, control lines.
_ELSEWHERE = r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|^[ \t]*#[^\n]*'
_PIECE = re.compile(rf'({_ELSEWHERE})|([{{}}])|(\bTEST(?=\s*"))', re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+D[ \t]+test\b[ \t]*([^\n]*)$", re.MULTILINE)
_STATUS = re.compile(r"\$status\b")
# $status inside of a TEST clause, which the lexer takes for a name; no name of D begins so.
STATUS = "`status"
FOLDS = ("count", "sum", "min", "max")
COMPUTED = "computed"
_SHOWN = frozenset(("==", "!=", "<", "<=", ">", ">=", "&&", "||", "^^"))
_OPERATORS = frozenset(INFIX) - {","}


@dataclass(frozen=True, slots=True)
class Read:
    """A part without aggregations: the value of that number that the statement's END clause
    traces.  text: as D."""

    number: int
    text: str

    @property
    def is_literal(self) -> bool:
        return self.text[0] in "\"'-0123456789"


@dataclass(frozen=True, slots=True)
class Status:
    """$status: with which the trace ended, the command's mostly."""


@dataclass(frozen=True, slots=True)
class Number:
    value: int


@dataclass(frozen=True, slots=True)
class Rows:
    """An aggregation: one row of it with a key, else all.  fold: count, sum, min or max of them,
    "" for the value of the only one."""

    name: str
    key: tuple[Term, ...] | None
    fold: str
    text: str


@dataclass(frozen=True, slots=True)
class Operation:
    """operator: as D has it; "?:" for three operands; COMPUTED where the value is the first one's,
    which is of the others."""

    operator: str
    operands: tuple[Term, ...]


Term = Read | Status | Number | Rows | Operation


@dataclass(frozen=True, slots=True)
class Assertion:
    """text: as the file has it.  term: what must not be 0.  reads: how many values its END clause
    traces; clause: which of the END clauses that is, -1 where there is none."""

    text: str
    span: Span
    term: Term
    reads: int
    clause: int

    @property
    def asks_status(self) -> bool:
        return any(isinstance(term, Status) for term in terms(self.term))


@dataclass(frozen=True, slots=True)
class TestClause:
    """condition: without which it is skipped."""

    __test__ = False  # pytest: no test itself

    name: str
    span: Span
    condition: Assertion | None
    assertions: tuple[Assertion, ...]


@dataclass(frozen=True, slots=True)
class TestFile:
    """program: D, with `clauses` clauses at its end that read variables.  command, timeout: of
    #pragma D test, "" and 0 where it says nothing."""

    __test__ = False

    program: str
    clauses: int
    tests: tuple[TestClause, ...]
    command: str
    timeout: float


def terms(term: Term) -> Iterator[Term]:
    """A term and all that are in it."""
    yield term
    parts = term.operands if isinstance(term, Operation) else ()
    if isinstance(term, Rows):
        parts = term.key or ()
    for part in parts:
        yield from terms(part)


def read_test_file(text: str, file: str) -> TestFile:
    """file: its name in errors.  Raises DError."""
    source = SourceText(_STATUS.sub(lambda found: STATUS, text), file)
    said = dict(_directives(text, SourceText(text, file)))
    reader = _TestReader(source, text)
    left = list(_DIRECTIVE.sub(lambda found: " " * len(found[0]), text))
    for start in _clause_starts(text):
        end = reader.clause(start)
        left[start:end] = (c if c == "\n" else " " for c in text[start:end])
    program = "".join(left)
    if reader.ends and not program.endswith("\n"):
        program += "\n"
    seconds = said.get("timeout", "0")
    return TestFile(
        program + "".join(reader.ends), len(reader.ends), tuple(reader.tests),
        said.get("command", ""), float(seconds),
    )  # fmt: skip


def _directives(text: str, source: SourceText) -> Iterator[tuple[str, str]]:
    """#pragma D test command "...", #pragma D test timeout N."""
    for found in _DIRECTIVE.finditer(text):
        word, _, value = found[1].strip().partition(" ")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1].replace('\\"', '"')
        good = word == "command" and value
        if word == "timeout":
            good = re.fullmatch(r"[0-9]+(\.[0-9]*)?", value) is not None and float(value) > 0
        if not good:
            hint = '#pragma D test command "ls /", #pragma D test timeout 30'
            span = source.span(found.start(), found.end())
            raise DError("malformed #pragma D test", span, "D_PRAGMA_MALFORM", hint)
        yield word, value


def _clause_starts(text: str) -> Iterator[int]:
    """The offsets of the TESTs that stand where a clause may begin."""
    depth, at = 0, 0
    while found := _PIECE.search(text, at):
        at = found.end()
        if found[2]:
            depth += 1 if found[2] == "{" else -1
        elif found[3] and not depth:
            yield found.start()


class _TestReader:
    """tests: the clauses so far; ends: the END clauses that they need."""

    def __init__(self, source: SourceText, text: str) -> None:
        self._source = source
        self._text = text
        self.tests: list[TestClause] = []
        self.ends: list[str] = []

    def clause(self, start: int) -> int:
        """Read the one whose TEST is at this offset; the offset behind it."""
        lexer = Lexer(self._source, MacroUse(Macros()))
        parser = ExpressionParser(lexer)
        word = lexer.expression(start)
        name = lexer.expression(word.end)
        parser.token = lexer.expression(name.end)
        condition: Assertion | None = None
        if parser.at("/"):
            parser.advance()
            parser.in_predicate = True
            condition = self._assertion(parser)
            parser.in_predicate = False
            parser.expect("/")
        if not parser.at("{"):
            raise parser.unexpected("{ and what must hold expected behind the name of a TEST")
        parser.advance()
        assertions = []
        while not parser.at("}"):
            if parser.at(";"):
                parser.advance()
                continue
            assertions.append(self._assertion(parser))
            if not parser.at(";", "}"):
                raise parser.unexpected("; or } expected")
        shown = name.data.decode("utf-8", "replace")
        span = self._source.span(start, name.end)
        if not shown.strip() or not assertions:
            lacks = "nothing to assert" if shown.strip() else "no name"
            raise DError(f"a TEST with {lacks}", span, "D_SYNTAX", 'TEST "name" { @a == @b; }')
        self.tests.append(TestClause(shown, span, condition, tuple(assertions)))
        return parser.token.end

    def _assertion(self, parser: ExpressionParser) -> Assertion:
        first: Token = parser.token
        node = parser.expression()
        text = " ".join(self._text[first.start : parser.token.start].split())
        span = self._source.span(first.start, parser.token.start)
        reads: list[str] = []
        term = _Lowering(reads).term(node)
        clause = -1
        if reads:
            clause = len(self.ends)
            actions = " ".join(f"trace({read});" for read in reads)
            place = f'#line {span.line} "{span.file}"'
            self.ends.append(f"\n{place}\ndtrace:::END {{ {actions} }}\n")
        return Assertion(text, span, term, len(reads), clause)


class _Lowering:
    """Of an expression: the terms; reads gets what D itself is to compute."""

    def __init__(self, reads: list[str]) -> None:
        self._reads = reads
        self._numbers = count()

    def _read(self, node: tree.ExprNode) -> Read:
        text = unparse_expression(node)
        self._reads.append(text)
        return Read(next(self._numbers), text)

    def term(self, node: tree.ExprNode) -> Term:
        if isinstance(node, tree.IntegerNode):
            return Number(node.literal.value)
        if isinstance(node, tree.NameNode) and node.name == STATUS:
            return Status()
        if not any(_is_ours(one) for one in _inside(node)):
            read = self._read(node)
            if isinstance(node, tree.InfixNode) and node.op in _SHOWN:
                # D compares; both sides are there to be shown.
                return Operation(COMPUTED, (read, self.term(node.left), self.term(node.right)))
            return read
        match node:
            case tree.AggregationNode(_, name):
                return Rows(name, None, "", f"@{name}")
            case tree.IndexNode(_, tree.AggregationNode(_, name), arguments):
                key = tuple(self.term(one) for one in arguments)
                return Rows(name, key, "", unparse_expression(node))
            case tree.CallNode(_, tree.NameNode(_, name), (tree.AggregationNode() as rows,)) if (
                name in FOLDS
            ):
                return Rows(rows.name, None, name, unparse_expression(node))
            case tree.CallNode(_, tree.NameNode(_, name), (tree.IndexNode() as row,)) if (
                name in FOLDS
            ):
                made = self.term(row)
                if isinstance(made, Rows):
                    return Rows(made.name, made.key, name, unparse_expression(node))
            case tree.PrefixNode(_, op, operand) if op in ("!", "-", "+", "~"):
                return Operation(op, (self.term(operand),))
            case tree.InfixNode(_, op, left, right) if op in _OPERATORS:
                return Operation(op, (self.term(left), self.term(right)))
            case tree.TernaryNode(_, condition, then, otherwise):
                return Operation("?:", tuple(map(self.term, (condition, then, otherwise))))
        message = f"{unparse_expression(node)[:60]} is nothing to be asked of an aggregation"
        hint = f"operators, {', '.join(f'{fold}(@a)' for fold in FOLDS)}; @a[key]"
        raise DError(message.replace(STATUS, "$status"), node.span, "D_AGG_MISUSE", hint)


def _is_ours(node: tree.ExprNode) -> bool:
    return isinstance(node, tree.AggregationNode) or (
        isinstance(node, tree.NameNode) and node.name == STATUS
    )


def _inside(node: object) -> Iterator[tree.ExprNode]:
    """An expression and all that are in it."""
    if isinstance(node, tuple):
        for one in node:
            yield from _inside(one)
    elif isinstance(node, tree.ExprNode):
        yield node
        for name in node.__dataclass_fields__:
            yield from _inside(getattr(node, name))
