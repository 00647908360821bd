"""Failures that `kinst inject` makes: which functions fail, and the value that a function returns
when it fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType, EnumType, IntType, PointerType
from kinst.core.errors import KinstError
from kinst.core.words import COLD
from kinst.dlang.vocabulary.type_names import is_bool

_FAILURE = re.compile(r"(?:([\w*?\[\]-]+):)?([\w*?\[\]@.]+)(?:\s+return\s+(.+))?")
_ERROR = re.compile(r"-\s*(\w+)")
_ERROR_POINTER = re.compile(r"ERR_PTR\s*\(\s*-\s*(\w+)\s*\)")
_LEAST = 4  # bytes of an integer that can be an error
_HINT = "'FUNCTION return VALUE', with NULL, -ENOMEM, ERR_PTR(-ENOMEM), false, true or a number"


@dataclass(frozen=True, slots=True)
class ErrorValue:
    """A value by which a function says that it has failed.

    Attributes:
        text: the value as the user writes it: NULL, -ENOMEM, ERR_PTR(-ENOMEM), false.
        kind: the kind of results for which the value is meant: "pointer", "integer" or "truth".
        number: the value as a signed number.
        error: positive number of the error that the function's callers should return after this
            value; 0 if that is not known.
    """

    text: str
    kind: str
    number: int
    error: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Functions that are to fail.

    Attributes:
        module: glob of their modules; "" for all.
        function: glob of their names.
        value: what they return; None for the usual value of their types.
    """

    module: str
    function: str
    value: ErrorValue | None

    def matches(self, module: str, function: str) -> bool:
        if COLD in function or not fnmatchcase(module, self.module or "*"):
            return False
        return fnmatchcase(function, self.function)

    def value_of(self, result: DType, usual: UsualValues) -> ErrorValue | str:
        """Return the value that a function returns when it fails. If functions of its type cannot
        fail in this way, return the reason, as text.

        Args:
            result: type of the function's result.
            usual: values for functions for which the user has given none.
        """
        kind = kind_of(result)
        if not kind:
            return f"no value of type {result} says that it has failed"
        if self.value is None:
            return usual[kind]
        if kind != self.value.kind and not (kind == "integer" and self.value.kind == "truth"):
            return f"{self.value.text} is no value of type {result}"
        return self.value


UsualValues = Mapping[str, ErrorValue]


def usual_values(name: str, number: int) -> UsualValues:
    """Return the values by which functions usually say that they have failed, by kind of result.

    Pointers are NULL, signed numbers are the negated `number`, and truth values are false.

    Args:
        name: the system's name of the error for "no memory", such as ENOMEM.
        number: the number of this error, positive.
    """
    return {
        "pointer": ErrorValue("NULL", "pointer", 0, number),
        "integer": ErrorValue(f"-{name}", "integer", -number, number),
        "truth": ErrorValue("false", "truth", 0),
    }


def kind_of(result: DType) -> str:
    """Return the kind of a function's result: "pointer", "integer" (signed), "truth" (bool); "" if
    functions with such a result cannot say that they have failed."""
    if isinstance(result, PointerType):
        return "pointer"
    if isinstance(result, IntType):
        if is_bool(result):
            return "truth"
        is_number = result.signed and result.size >= _LEAST and not isinstance(result, EnumType)
        return "integer" if is_number else ""
    return ""


def parse_failure(text: str, errors: Mapping[str, int], usual: UsualValues) -> Failure:
    """Return the failure that a text such as "kmalloc* return NULL" describes.

    Args:
        text: [MODULE:]FUNCTION, or [MODULE:]FUNCTION return VALUE; both may be globs.
        errors: numbers of errors by name.
        usual: values by which functions usually say that they have failed, by kind of result. VALUE
            NULL means the usual value for pointers.

    Raises:
        KinstError: the text does not describe a failure.
    """
    matched = _FAILURE.fullmatch(text.strip())
    if matched is None:
        raise KinstError(f"not a failure: {text!r}", _HINT)
    module, function, value = matched.groups()
    made = None if value is None else _value(value.strip(), errors, usual)
    return Failure(module or "", function, made)


def _value(text: str, errors: Mapping[str, int], usual: UsualValues) -> ErrorValue:
    if text == "NULL":
        return usual["pointer"]
    if text in ("false", "true"):
        return ErrorValue(text, "truth", int(text == "true"))
    makers: tuple[tuple[re.Pattern[str], str, Callable[[str], str]], ...] = (
        (_ERROR_POINTER, "pointer", lambda name: f"ERR_PTR(-{name})"),
        (_ERROR, "integer", lambda name: f"-{name}"),
    )
    for pattern, kind, spelled in makers:
        if (matched := pattern.fullmatch(text)) is None:
            continue
        name = matched[1]
        number = int(name) if name.isdecimal() else errors.get(name)
        if not number:
            raise KinstError(f"no error is called {name}", _HINT)
        return ErrorValue(spelled(name), kind, -number, number)
    try:
        return ErrorValue(text, "integer", int(text, 0))
    except ValueError:
        raise KinstError(f"not a value that a function returns: {text!r}", _HINT) from None
