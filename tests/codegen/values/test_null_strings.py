"""Strings that are NULL, in variables and expressions, on both machines.

Expected values are those of illumos' and FreeBSD's dtrace_dif_emulate(): a variable of type string
can be NULL; NULL is like "" in comparisons of strings, and an invalid address if it is read.
"""

from __future__ import annotations

import pytest

from kinst.core import layout as lay
from tests.codegen.subroutines_rig import NULL, check

PLACES = ["s", "self->s", "this->s", "a[5]", "self->a[5]"]
ALL = pytest.mark.parametrize("place", PLACES)
GONE = 'strtok("", ",")'  # NULL, but not a constant


@ALL
def test_a_variable_is_null(place: str) -> None:
    body = ""
    for null in ("NULL", "0", GONE, f"1 ? NULL : {place}"):
        body += f'{place} = "text"; trace({place} == NULL); {place} = {null};'
        body += f"trace({place} == NULL);"
    check(body, [0, 1] * 4)
    check(f'{place} = "text"; trace({place}); {place} = {GONE}; trace({place});', NULL)


@pytest.mark.parametrize("use", ["strlen(s)", "strjoin(s, s)", "strtoll(s)", "json(s, s)"])
def test_subroutines_cannot_read_null(use: str) -> None:
    check(f's = "text"; s = NULL; trace({use});', NULL)


@ALL
def test_and_a_string_again(place: str) -> None:
    body = f'{place} = "old"; {place} = {GONE}; {place} = "new"; trace({place});'
    body += f'trace({place} == NULL); {place} = NULL; {place} = ""; trace({place});'
    check(body, [b"new", 0, b""])


@ALL
def test_null_goes_from_one_variable_to_another(place: str) -> None:
    body = f'{place} = "x"; other = "y"; {place} = {GONE}; other = {place};'
    body += f'trace(other == NULL); {place} = other = "z"; trace({place}); trace(other);'
    body += f"other = {place} = {GONE}; trace(other == NULL);"
    check(body, [1, b"z", b"z", 1])


def test_what_was_never_assigned() -> None:
    """Variables without memory of their own are NULL."""
    body = 'trace(regs[R_2] ? (self->s = "x") : (a[regs[R_3]] = "y"));'
    check(f"{body} trace(self->s == NULL); trace(a[5] == NULL);", [b"y", 1, 1])
    check(f"{body} trace(self->s);", NULL)
    check(f"{body} trace(a[6]);", NULL, b"", b"", 0, 7)


def test_comparisons() -> None:
    for null in ("this->n", "stringof((char *)0)", "(string)regs[R_2]"):
        body = f'this->n = "x"; this->n = {GONE};'
        body += f'trace({null} == ""); trace({null} != ""); trace({null} == "a");'
        body += f'trace({null} < "a"); trace("a" > {null}); trace({null} >= "");'
        body += f"trace({null} == {null}); trace({null} == NULL);"
        check(body, [1, 0, 0, 1, 1, 1, 1, 1])
    check('trace("abc" == NULL); trace(NULL != "abc"); trace("" == NULL);', [0, 1, 1])


def test_conditional() -> None:
    body = 'this->x = regs[R_2] ? "yes" : NULL; trace(this->x == NULL);'
    check(body, [0], b"", b"", 1)
    check(body, [1], b"", b"", 0)
    body = 'trace(regs[R_2] ? NULL : "no"); trace((regs[R_2] ? 0 : "no") == NULL);'
    check(body, [b"no", 0], b"", b"", 0)
    check(body, NULL, b"", b"", 1)


def test_an_address_of_zero_is_null_and_others_are_read() -> None:
    body = "this->s = stringof((char *)regs[R_2]); trace(this->s == NULL);"
    check(body, [1])
    check(body, (lay.FAULT_BADADDR, 8), b"", b"", 8)
    check(body + "trace(this->s);", NULL)
    check(body.replace("R_2", "R_0") + "trace(this->s);", [0, b"text"], b"text")


def test_tokens_until_null() -> None:
    body = (
        'this->f = strtok(S, ","); trace(this->f);'
        ' this->f = strtok(NULL, ","); trace(this->f);'
        ' this->f = strtok(NULL, ","); trace(this->f == NULL);'
    )
    check(body, [b"one", b"two", 1], b"one,two")
    body = 'this->s = "x"; this->s = NULL; strtok(S, ","); trace(strtok(this->s, ","));'
    check(body, [b"b"], b"a,b")
