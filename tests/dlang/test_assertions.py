"""TEST clauses: which parts of a test file they are, and what remains as D."""

from __future__ import annotations

import pytest

from kinst.dlang.api import parse_text
from kinst.dlang.assertions import read_test_file
from kinst.errors import DError

FILE = """\
/* TEST "in a comment" { 1; } */
#pragma D test command "sh -c \\"exit 7\\""
#pragma D test timeout 2.5
#pragma D option fail=drops
BEGIN { s = "TEST \\"x\\" {"; c = '{'; @ = count(); exit(0); }
TEST "first" { @ == 1; c == '{' && s != ""; }
tick-1s /c == '}'/ { exit(1); }
TEST "second"
/@ > 5/
{
	@by["a", c + 1] * 2 <= sizeof (int) ; count(@by) == $status
}
"""


def test_a_file_is_taken_apart() -> None:
    read = read_test_file(FILE, "f.d")
    assert (read.command, read.timeout) == ('sh -c "exit 7"', 2.5)
    first, second = read.tests
    assert (first.name, first.span.line, first.condition) == ("first", 6, None)
    assert [one.text for one in first.assertions] == ["@ == 1", "c == '{' && s != \"\""]
    assert second.condition is not None and second.condition.text == "@ > 5"
    assert [one.text for one in second.assertions] == [
        '@by["a", c + 1] * 2 <= sizeof (int)', "count(@by) == $status"
    ]  # fmt: skip
    assert [one.span.line for one in second.assertions] == [11, 11]
    assert [one.asks_status for one in second.assertions] == [False, True]


def test_what_is_left_is_d() -> None:
    """Lines keep their numbers; after them there is a clause for each statement that reads."""
    read = read_test_file(FILE, "f.d")
    program = parse_text(read.program, "f.d", script=True)
    assert read.clauses == 2
    assert [clause.span.line for clause in program.clauses] == [5, 7, 6, 11]
    kept = read.program.splitlines()
    assert kept[4] == FILE.splitlines()[4] and "TEST" not in "".join(kept[5:])
    assert [str(c.descriptions[0].pattern) for c in program.clauses[2:]] == ["dtrace:::END"] * 2
    # The whole comparison is D's; its sides are there to be shown.
    assert len(program.clauses[2].statements) == 6
    assert len(program.clauses[3].statements) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('TEST "" { 1; }', "f.d:1:1: a TEST without a name"),
        ('TEST "x" { }', "f.d:1:1: a TEST without conditions"),
        ('TEST "x" { @a == 1', "f.d:1:19: syntax error near end of input"),
        ('TEST "x" @a;', 'f.d:1:10: syntax error near "@a"'),
        ('TEST "x" { @a++; }', "f.d:1:12: @a++ cannot be used on an aggregation"),
        ('TEST "x" { strlen(@a); }', "f.d:1:12: strlen(@a) cannot be used on an"),
        ("#pragma D test nothing", "f.d:1:1: malformed #pragma D test"),
        ("#pragma D test timeout 0", "f.d:1:1: malformed #pragma D test"),
    ],
)
def test_errors_have_their_place(text: str, message: str) -> None:
    with pytest.raises(DError) as error:
        read_test_file(text, "f.d")
    assert f"{error.value.span}: {error.value}".startswith(message)


def test_plain_d_has_no_such_clause() -> None:
    with pytest.raises(DError, match="TEST clauses are no part of D") as error:
        parse_text('BEGIN { x = 1; }\nTEST "x" { 1; }', "f.d", script=True)
    assert error.value.span.line == 2 and "kinst test" in error.value.hint
