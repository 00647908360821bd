"""TEST clauses: conditions that must hold at the end of a trace (docs/testing.md).

    TEST "every read is checked once" /@reads/
    {
        @reads == @checks;
        @bytes["cat"] > size * 2;
    }

A test file is a D program that also has TEST clauses. read_test_file() removes the TEST clauses, so
that a plain D program is left. Parts of a condition without an aggregation, such as `size` above,
are computed by D: read_test_file() appends END clauses that trace them. kinst.views.verdicts
computes the rest after the trace: operators on aggregations and on the traced values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from kinst.core.dataclass import dataclass
from kinst.core.errors import DError, Span
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.expression_parser import INFIX, ExpressionParser
from kinst.dlang.syntax.lexer import Lexer, Macros, MacroUse, Token
from kinst.dlang.syntax.source import SourceText
from kinst.dlang.syntax.unparse import unparse_expression

# Text in which no clause can begin: comments, strings, control lines.
_ELSEWHERE = r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|^[ \t]*#[^\n]*'
_PIECE = re.compile(rf'({_ELSEWHERE})|([{{}}])|(\bTEST(?=\s*"))', re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+D[ \t]+test\b[ \t]*([^\n]*)$", re.MULTILINE)
_STATUS = re.compile(r"\$status\b")
# Name that replaces $status in a TEST clause; no name of D begins with a `.
STATUS = "`status"
FOLDS = ("count", "sum", "min", "max")
COMPUTED = "computed"
_SHOWN = frozenset(("==", "!=", "<", "<=", ">", ">=", "&&", "||", "^^"))
_OPERATORS = frozenset(INFIX) - {","}


@dataclass(frozen=True, slots=True)
class TracedTerm:
    """A term of a TEST condition that has no aggregation, such as `size * 2`. The condition's END
    clause traces its value.
    """

    number: int  # index among the values that the END clause traces
    text: str  # the part's text in D

    @property
    def is_literal(self) -> bool:
        return self.text[0] in "\"'-0123456789"


@dataclass(frozen=True, slots=True)
class StatusTerm:
    """A term of a TEST condition: $status, the exit status of the trace. If the program calls
    exit(), this is the argument of exit(); otherwise it is the exit status of the traced command.
    """


@dataclass(frozen=True, slots=True)
class Number:
    value: int


@dataclass(frozen=True, slots=True)
class AggregationTerm:
    """A term of a TEST condition: the value of one entry of an aggregation, or a number computed
    from the aggregation's entries, such as count(@reads).
    """

    name: str
    key: tuple[Term, ...] | None  # key of the entry; None for all entries
    fold: str  # "count", "sum", "min" or "max" of the entries; "" for the value of the only entry
    text: str  # the term's text in D


@dataclass(frozen=True, slots=True)
class Operation:
    """A term of a TEST condition: an operator and its operands, which are terms as well."""

    # D's operator; "?:" with three operands; or COMPUTED: the first operand is the operation's
    # value as D has computed it, and the other operands are shown in messages.
    operator: str
    operands: tuple[Term, ...]


Term = TracedTerm | StatusTerm | Number | AggregationTerm | Operation


@dataclass(frozen=True, slots=True)
class Assertion:
    """One condition of a TEST clause: a statement of its body, or its predicate."""

    text: str  # the condition's text in the file
    span: Span
    term: Term  # the condition holds if the term's value is not 0
    reads: int  # number of values that the condition's END clause traces
    clause: int  # index of the condition's END clause; -1 if the condition needs none

    @property
    def asks_status(self) -> bool:
        return any(isinstance(term, StatusTerm) for term in terms(self.term))


@dataclass(frozen=True, slots=True)
class TestClause:
    """One TEST clause of a test file."""

    __test__ = False  # tells pytest that the class is no test

    name: str
    span: Span
    condition: Assertion | None  # the predicate; if it does not hold, the clause is skipped
    assertions: tuple[Assertion, ...]


@dataclass(frozen=True, slots=True)
class TestFile:
    """The parsed form of a test file."""

    __test__ = False

    program: str  # D program without the TEST clauses, with their END clauses at its end
    clauses: int  # number of END clauses that were appended
    tests: tuple[TestClause, ...]
    command: str  # command of #pragma D test; "" if there is none
    timeout: float  # timeout of #pragma D test, in seconds; 0 if there is none


def terms(term: Term) -> Iterator[Term]:
    """Yield a term of a TEST condition and all its operands and keys, recursively."""
    yield term
    parts = term.operands if isinstance(term, Operation) else ()
    if isinstance(term, AggregationTerm):
        parts = term.key or ()
    for part in parts:
        yield from terms(part)


def read_test_file(text: str, file: str) -> TestFile:
    """Parse a test file. Raises DError.

    Args:
        text: the file's text.
        file: the file's name, for error messages.
    """
    source = SourceText(_STATUS.sub(lambda found: STATUS, text), file)
    directives = dict(_directives(text, SourceText(text, file)))
    reader = _TestReader(source, text)
    plain = list(_DIRECTIVE.sub(lambda found: " " * len(found[0]), text))
    for start in _clause_starts(text):
        end = reader.clause(start)
        plain[start:end] = (c if c == "\n" else " " for c in text[start:end])
    program = "".join(plain)
    if reader.ends and not program.endswith("\n"):
        program += "\n"
    seconds = directives.get("timeout", "0")
    return TestFile(
        program + "".join(reader.ends), len(reader.ends), tuple(reader.tests),
        directives.get("command", ""), float(seconds),
    )  # fmt: skip


def _directives(text: str, source: SourceText) -> Iterator[tuple[str, str]]:
    """Yield (word, value) of each line `#pragma D test command "..."` or `#pragma D test timeout
    N`: ("command", the command) or ("timeout", "N"). Raises DError if such a line is malformed.
    """
    for match in _DIRECTIVE.finditer(text):
        word, _, value = match[1].strip().partition(" ")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1].replace('\\"', '"')
        good = word == "command" and value
        if word == "timeout":
            good = re.fullmatch(r"[0-9]+(\.[0-9]*)?", value) is not None and float(value) > 0
        if not good:
            hint = '#pragma D test command "ls /", #pragma D test timeout 30'
            span = source.span(match.start(), match.end())
            raise DError("malformed #pragma D test", span, "D_PRAGMA_MALFORM", hint)
        yield word, value


def _clause_starts(text: str) -> Iterator[int]:
    """Yield the offset of each word TEST that is outside all braces: there a TEST clause begins."""
    depth, at = 0, 0
    while match := _PIECE.search(text, at):
        at = match.end()
        if match[2]:
            depth += 1 if match[2] == "{" else -1
        elif match[3] and not depth:
            yield match.start()


class _TestReader:
    """Parser of TEST clauses.

    Attributes:
        tests: the clauses that have been parsed.
        ends: the text of the END clauses that belong to the parsed TEST clauses.
    """

    def __init__(self, source: SourceText, text: str) -> None:
        self._source = source
        self._text = text
        self.tests: list[TestClause] = []
        self.ends: list[str] = []

    def clause(self, start: int) -> int:
        """Parse the TEST clause that begins at an offset; return the offset after the clause.
        Raises DError.
        """
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
            raise parser.unexpected("{ and conditions expected after the name of a TEST")
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
            lacks = "conditions" if shown.strip() else "a name"
            raise DError(f"a TEST without {lacks}", span, "D_SYNTAX", 'TEST "name" { @a == @b; }')
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
    """Converter of a TEST condition's syntax tree to a term. To the list `reads`, it adds the D
    text of each part of the condition that the END clause must trace.
    """

    def __init__(self, reads: list[str]) -> None:
        self._reads = reads
        self._numbers = count()

    def _read(self, node: tree.ExprNode) -> TracedTerm:
        text = unparse_expression(node)
        self._reads.append(text)
        return TracedTerm(next(self._numbers), text)

    def term(self, node: tree.ExprNode) -> Term:
        if isinstance(node, tree.IntegerNode):
            return Number(node.literal.value)
        if isinstance(node, tree.NameNode) and node.name == STATUS:
            return StatusTerm()
        if not any(_is_ours(one) for one in _inside(node)):
            read = self._read(node)
            if isinstance(node, tree.InfixNode) and node.op in _SHOWN:
                # D compares both sides, and traces them so that a message can show them.
                return Operation(COMPUTED, (read, self.term(node.left), self.term(node.right)))
            return read
        match node:
            case tree.AggregationNode(_, name):
                return AggregationTerm(name, None, "", f"@{name}")
            case tree.IndexNode(_, tree.AggregationNode(_, name), arguments):
                key = tuple(self.term(one) for one in arguments)
                return AggregationTerm(name, key, "", unparse_expression(node))
            case tree.CallNode(_, tree.NameNode(_, name), (tree.AggregationNode() as rows,)) if (
                name in FOLDS
            ):
                return AggregationTerm(rows.name, None, name, unparse_expression(node))
            case tree.CallNode(_, tree.NameNode(_, name), (tree.IndexNode() as row,)) if (
                name in FOLDS
            ):
                rows_of_key = self.term(row)
                if isinstance(rows_of_key, AggregationTerm):
                    return AggregationTerm(
                        rows_of_key.name, rows_of_key.key, name, unparse_expression(node)
                    )
            case tree.PrefixNode(_, op, operand) if op in ("!", "-", "+", "~"):
                return Operation(op, (self.term(operand),))
            case tree.InfixNode(_, op, left, right) if op in _OPERATORS:
                return Operation(op, (self.term(left), self.term(right)))
            case tree.TernaryNode(_, condition, then, otherwise):
                return Operation("?:", tuple(map(self.term, (condition, then, otherwise))))
        message = f"{unparse_expression(node)[:60]} cannot be used on an aggregation"
        hint = f"operators, {', '.join(f'{fold}(@a)' for fold in FOLDS)}; @a[key]"
        raise DError(message.replace(STATUS, "$status"), node.span, "D_AGG_MISUSE", hint)


def _is_ours(node: tree.ExprNode) -> bool:
    return isinstance(node, tree.AggregationNode) or (
        isinstance(node, tree.NameNode) and node.name == STATUS
    )


def _inside(node: object) -> Iterator[tree.ExprNode]:
    """Yield an expression and all its subexpressions."""
    if isinstance(node, tuple):
        for one in node:
            yield from _inside(one)
    elif isinstance(node, tree.ExprNode):
        yield node
        for name in node.__dataclass_fields__:
            yield from _inside(getattr(node, name))
