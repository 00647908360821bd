"""json() on both machines, against a writer of JSON that knows each element's text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.subroutines_rig import NULL, STRSIZE, check
from tests.tiers import draws

BODY = "trace(json(S, T));"
plain = st.text("abz -_", min_size=1, max_size=4)  # a path cannot name an empty one
PIECES = ["a", "}", "]", ",", ":", "[", "\\n", '\\"', "\\u00e9", "\\\\"]
strings = st.lists(st.sampled_from(PIECES), max_size=4).map(lambda s: '"' + "".join(s) + '"')
numbers = st.sampled_from(["0", "-1", "12", "3.5", "1e9", "-2.50E-3", "7E+2"])
scalars = strings | numbers | st.sampled_from(["true", "false", "null"])
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(plain, v, max_size=3), max_leaves=6
)


def written(value: Any, blank: str) -> str:
    """Return JSON text of a value whose scalars are already text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "[" + blank + ("," + blank).join(written(v, blank) for v in value) + blank + "]"
    members = [f'"{k}"{blank}:{blank}{written(v, blank)}' for k, v in value.items()]
    return "{" + blank + ("," + blank).join(members) + blank + "}"


def found(value: Any, path: list[str | int], blank: str) -> bytes | None:
    for part in path:
        if isinstance(value, str):
            return None
        if isinstance(value, list):
            if not isinstance(part, int) or part >= len(value):
                return None
            value = value[part]
        else:
            if str(part) not in value:
                return None
            value = value[str(part)]
    text = written(value, blank)
    return (text[1:-1] if text[0] == '"' else text).encode()


def spelled(path: list[str | int]) -> str:
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    return text.removeprefix(".")


@settings(max_examples=draws(80, 250), deadline=None)
@given(st.data(), values, st.sampled_from(["", " ", "\t\n"]))
def test_an_element(data: st.DataObject, value: Any, blank: str) -> None:
    path: list[str | int] = []
    here = value
    while not isinstance(here, str) and here and (not path or data.draw(st.booleans())):
        keys: list[Any] = list(range(len(here))) if isinstance(here, list) else list(here)
        key = data.draw(st.sampled_from(keys))
        path.append(key)
        here = here[key]
    if not path or data.draw(st.integers(0, 4)) == 0:
        path.append(data.draw(st.sampled_from(["b", "zz", 0, 3])))
    text = blank + written(value, blank)
    if len(text) < STRSIZE:
        expected = found(value, path, blank)
        args = text.encode(), spelled(path).encode()
        check(BODY, NULL if expected is None else [expected], *args)
        check("trace(json(S, T) == NULL);", [int(not expected)], *args)


@pytest.mark.parametrize(
    "text",
    ["", "a", "12", '"a"', "{", '{"a', '{"a"', '{"a":', '{"a":1', '{"a":"x', '{"a":{"b":1',
     '{"a":nul}', '{"a":truex}', '{"a":0x1}', '{"a":1-2}', '{"a":1.2.3}', '{"a":"\\u12x4"}',
     '{"a":"\\u12"}', '{"a":"\\u"}', '{"a":"\\u123"}', '{"a":"\\u12345\\"}',
     '{"b":1 "a":2}',
     '{a:1}', '{"a" 1}', '{"b":],"a":1}', '{"b":+1,"a":1}', "[1,2", "{}", "[]"],
)  # fmt: skip
def test_what_is_no_json_is_null(text: str) -> None:
    check(BODY, NULL, text.encode(), b"a")


def test_named_cases() -> None:
    check(BODY, [b"1"], b'{"a":1,"a":2}', b"a")  # the first of two
    check(BODY, [b"x"], b'{"a":{"a":"x"}}', b"a.a")
    check(BODY, [b'{"a":"x"}'], b'{"a":{"a":"x"}}', b"a")
    check(BODY, [b"3"], b"[[1],[2,3]]", b"[1][1]")
    check(BODY, [b"3"], b'{"a":[{"b":3}]}', b"a[0].b")
    check(BODY, [b""], b'{"a":""}', b"a")


def test_an_index_has_as_many_digits_as_it_takes() -> None:
    text = b"[" + b",".join(b"%d" % (k % 10) for k in range(25)) + b"]"
    for k in range(25):
        check(BODY, [b"%d" % (k % 10)], text, b"[%d]" % k)
        check(BODY, [b"%d" % (k % 10)], text, b"[00%d]" % k)
    for k in (25, 100, 1 << 32, (1 << 32) + 1, 1 << 64, (1 << 64) + 1, 10**30):
        check(BODY, NULL, text, b"[%d]" % k)


def test_white_space_is_what_c_says() -> None:
    """White space is what isspace(3) says in the C locale, before the text and before each part of
    it."""
    for byte in range(1, 256):
        text = b'#{#"a"#:#5}'.replace(b"#", bytes([byte]))
        check(BODY, [b"5"] if byte in b" \t\n\v\f\r" else NULL, text, b"a")


def test_what_follows_a_number() -> None:
    """A number is followed by the end of an object, white space, a comma, or more of the
    number."""
    for byte in range(1, 256):
        text = b'{"a":12' + bytes([byte]) + b"}"
        if chr(byte) in "0123456789.eE":
            check(BODY, [b"12" + bytes([byte])], text, b"a")
        elif byte in b",]} \t\n\v\f\r":
            check(BODY, [b"12"], text, b"a")
        else:
            check(BODY, NULL, text, b"a")


@pytest.mark.parametrize("letter", "0159afAF/:@G`g")
def test_escaped_characters_have_four_hexadecimal_digits(letter: str) -> None:
    good = letter in "0123456789abcdefABCDEF"
    for digits in ("xxxx", "0xxx", "x0xx", "0x00", "000x"):
        escape = "\\u" + digits.replace("x", letter)
        text = f'{{"b":"{escape}","a":5}}'
        check(BODY, [b"5"] if good else NULL, text.encode(), b"a")


def test_an_index_is_a_number() -> None:
    for path in (b"[x]", b"[1x]", b"[]", b"[-1]", b"[:]", b"[/]"):
        check(BODY, NULL, b"[[1],[2,3],4]", path)
    many = b"[" + b",".join([b"1"] * 30) + b"]"
    for path in (b"[:]", b"[1:]", b"[1/]", b"[2-]", b"[+1]", b"[1 ]", b"[.1]"):
        check(BODY, NULL, many, path)
