"""Descriptions of failures, and the values that functions return by their types."""

from __future__ import annotations

import pytest

from kinst.core.dtypes import INT, LONG, UINT, ULONG, VOID, IntType, PointerType, StructType
from kinst.core.errors import KinstError
from kinst.trials.failures import ErrorValue, parse_failure, usual_values

USUAL = usual_values("ENOMEM", 12)
ERRORS = {"ENOMEM": 12, "EIO": 5}
BOOL = IntType(1, False, "_Bool")
POINTER = PointerType(VOID)


def parsed(text: str) -> tuple[str, str, ErrorValue | None]:
    made = parse_failure(text, ERRORS, USUAL)
    return made.module, made.function, made.value


@pytest.mark.parametrize(
    ("value", "kind", "number", "error"),
    [
        ("NULL", "pointer", 0, 12),
        ("-ENOMEM", "integer", -12, 12),
        ("- EIO", "integer", -5, 5),
        ("-5", "integer", -5, 5),
        ("ERR_PTR(-ENOMEM)", "pointer", -12, 12),
        ("ERR_PTR( -EIO )", "pointer", -5, 5),
        ("false", "truth", 0, 0),
        ("true", "truth", 1, 0),
        ("7", "integer", 7, 0),
        ("0x10", "integer", 16, 0),
    ],
)
def test_values(value: str, kind: str, number: int, error: int) -> None:
    module, function, made = parsed(f"kmalloc*  return  {value}")
    assert (module, function) == ("", "kmalloc*") and made is not None
    assert (made.kind, made.number, made.error) == (kind, number, error)


def test_names() -> None:
    assert parsed("ext4:ext4_*") == ("ext4", "ext4_*", None)
    assert parsed("vmlinux:kmalloc_trace return NULL")[0] == "vmlinux"
    failure = parse_failure("ext*:*_alloc", ERRORS, USUAL)
    assert failure.matches("ext4", "new_alloc") and not failure.matches("xfs", "new_alloc")
    assert not failure.matches("ext4", "new_alloc.cold")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a failure"),
        ("kmalloc returns NULL", "not a failure"),
        ("kmalloc return", "not a failure"),
        ("kmalloc return -ENOMEN", "no error is called ENOMEN"),
        ("kmalloc return nothing", "not a value that a function returns"),
        ("kmalloc return ERR_PTR(12)", "not a value that a function returns"),
    ],
)
def test_wrong_texts(text: str, said: str) -> None:
    with pytest.raises(KinstError, match=said):
        parsed(text)


@pytest.mark.parametrize(
    ("type_", "text"),
    [(POINTER, "NULL"), (INT, "-ENOMEM"), (LONG, "-ENOMEM"), (BOOL, "false")],
)
def test_the_usual_value_of_a_type(type_: IntType, text: str) -> None:
    value = parse_failure("f", ERRORS, USUAL).value_of(type_, USUAL)
    assert isinstance(value, ErrorValue) and value.text == text


@pytest.mark.parametrize(
    "type_", [VOID, UINT, ULONG, IntType(1, True, "char"), StructType("struct", "s", 8, "s", None)]
)
def test_types_without_an_error(type_: IntType) -> None:
    """A number without a sign, a character or a structure may be anything."""
    assert "has failed" in str(parse_failure("f", ERRORS, USUAL).value_of(type_, USUAL))


def test_a_value_of_another_type() -> None:
    null = parse_failure("f return NULL", ERRORS, USUAL)
    assert isinstance(null.value_of(POINTER, USUAL), ErrorValue)
    assert null.value_of(INT, USUAL) == "NULL is no value of type int"
    number = parse_failure("f return -EIO", ERRORS, USUAL)
    assert number.value_of(POINTER, USUAL) == "-EIO is no value of type void *"
    assert isinstance(number.value_of(LONG, USUAL), ErrorValue)
