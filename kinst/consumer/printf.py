"""Compilation of printf() formats, to format many records at once.

A format becomes a Python %-template with one column of values for each conversion. Then a few
operations format a whole block of records of one clause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kinst.consumer.columns import bytes_of, is_string, strings_of, values_of
from kinst.consumer.convert import (
    ALWAYS_SIGNED,
    FLOATING,
    Spec,
    Symbolise,
    Value,
    fixed,
    stack,
    text,
)
from kinst.consumer.rings import Bytes
from kinst.core.dataclass import dataclass
from kinst.core.records import Field
from kinst.dlang.typed import FormatPart, PrintfFormat, is_signed

Column = Callable[[Bytes], Sequence[object]]


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """Compiled format that makes a text of each record.

    Attributes:
        template: a Python %-template.
        columns: for each conversion in the template, a function from records to the values to
            convert.
    """

    template: str
    columns: tuple[Column, ...]

    def render(self, rows: Bytes) -> list[str]:
        """Return the text of each record, in the order of the records.

        Args:
            rows: the records, an (n, size) matrix of bytes.
        """
        if not self.columns:
            return [self.template % ()] * len(rows)
        if len(self.columns) == 1:
            # % needs a tuple here, since the value may itself be a tuple.
            return [self.template % (value,) for value in self.columns[0](rows)]
        values = zip(*[column(rows) for column in self.columns], strict=True)
        return list(map(self.template.__mod__, values))


class TemplateBuilder:
    """Builder of a RowTemplate, to which literal text and conversions are added one after
    another."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._columns: list[Column] = []

    def literal(self, value: str) -> None:
        self._parts.append(value.replace("%", "%%"))

    def column(self, directive: str, column: Column) -> None:
        self._parts.append(directive)
        self._columns.append(column)

    def built(self) -> RowTemplate | None:
        """Return the template of all text and conversions added since the last call; None if
        nothing was added."""
        if not self._parts:
            return None
        template = RowTemplate("".join(self._parts), tuple(self._columns))
        self._parts, self._columns = [], []
        return template


def _mapped(
    column: Callable[[Bytes], Iterable[Value]], prepare: Callable[[Value], object]
) -> Column:
    return lambda rows: [prepare(value) for value in column(rows)]


def _raw_column(field: Field, conversion: str) -> Callable[[Bytes], list[Value]]:
    """Return a function that takes records and returns the values of a field, in the form that a
    conversion needs: bytes, signed integers or unsigned integers."""
    if conversion in FLOATING | {"k", "ws"}:
        return lambda rows: list(bytes_of(rows, field))
    if is_string(field):
        return lambda rows: list(strings_of(rows, field))
    signed = conversion in ALWAYS_SIGNED or (is_signed(field.type) and conversion in "dcC")
    return lambda rows: list[Value](values_of(rows, field, signed))


def _dynamic(
    part: FormatPart, stars: Sequence[Field], field: Field, symbolise: Symbolise
) -> Column:
    """Return a function that takes records and returns texts, for a conversion with `*`, such as
    %*d. The width or precision that `*` stands for is an argument of printf(), so each record
    contains it.

    Args:
        part: the conversion.
        stars: fields with the values of `*`, in order.
        field: field with the value to convert.
    """
    raw = _raw_column(field, part.conversion)
    signed = is_signed(field.type)

    def column(rows: Bytes) -> list[object]:
        given = [values_of(rows, star, True) for star in stars]
        texts: list[object] = []
        for i, value in enumerate(raw(rows)):
            numbers = iter([g[i] for g in given])
            width = next(numbers) if part.width == "*" else fixed(part.width, part.flags)
            precision = next(numbers) if part.precision == "*" else fixed(part.precision, "")
            if precision is not None and precision < 0:
                precision = None  # a negative precision counts as missing (printf(3))
            spec = Spec(part.conversion, part.flags, width, precision, signed)
            texts.append(spec.format(value, symbolise))
        return texts

    return column


def add_format(
    out: TemplateBuilder, format_: PrintfFormat, fields: Sequence[Field], symbolise: Symbolise
) -> None:
    """Add the text and conversions of a printf() format to a template.

    Args:
        out: the template's builder.
        fields: fields of the format's arguments, in order.
        symbolise: returns the name of an address.
    """
    arguments = iter(fields)
    for part in format_.parts:
        out.literal(text(part.literal))
        if not part.conversion:
            continue
        if part.conversion == "%":
            out.literal("%")
            continue
        stars = [next(arguments) for star in (part.width, part.precision) if star == "*"]
        field = next(arguments)
        if part.conversion == "k":
            width = fixed(part.width, part.flags) or 0
            indent = width if "-" in part.flags else 0
            out.column(
                "%s",
                _mapped(
                    _raw_column(field, "k"),
                    lambda v, indent=indent: stack(v, indent, symbolise),  # type: ignore[misc]
                ),
            )
        elif stars:
            out.column("%s", _dynamic(part, stars, field, symbolise))
        else:
            spec = Spec(
                part.conversion, part.flags, fixed(part.width, part.flags),
                fixed(part.precision, ""), is_signed(field.type),
            )  # fmt: skip
            directive, prepare = spec.compile(symbolise)
            raw = _raw_column(field, part.conversion)
            out.column(directive, _mapped(raw, prepare) if prepare else raw)


def format_template(
    format_: PrintfFormat, fields: Sequence[Field], symbolise: Symbolise
) -> RowTemplate:
    """Return the compiled template of one format, such as the command of system() or the file name
    of freopen().

    Args:
        fields: fields of the format's arguments, in order.
        symbolise: returns the name of an address.
    """
    out = TemplateBuilder()
    add_format(out, format_, fields, symbolise)
    return out.built() or RowTemplate("", ())
