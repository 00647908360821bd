"""One field of many records, as a Python list: integers, bytes, strings.

Rows are an (n, size) matrix of bytes: a record, or an entry of an aggregation, in each.

Tested by tests/consumer/test_values.py and tests/consumer/test_interpreter.py.
"""

from __future__ import annotations

import numpy as np

from kinst.consumer.rings import Bytes
from kinst.core.dtypes import StringType
from kinst.core.records import Field, KeyValue
from kinst.dlang.typed import is_signed


def values_of(rows: Bytes, field: Field, signed: bool) -> list[int]:
    """Return an integer field of every row."""
    part = np.ascontiguousarray(rows[:, field.offset : field.offset + field.size])
    result: list[int] = part.view(f"<{'i' if signed else 'u'}{field.size}").ravel().tolist()
    return result


def bytes_of(rows: Bytes, field: Field) -> list[bytes]:
    """Return all bytes of a field of every row."""
    part = np.ascontiguousarray(rows[:, field.offset : field.offset + field.size])
    return [row.tobytes() for row in part]  # a structure may have no bytes


def strings_of(rows: Bytes, field: Field) -> list[bytes]:
    """Return a string field of every row, up to its NUL."""
    return [value.partition(b"\0")[0] for value in bytes_of(rows, field)]


def is_string(field: Field) -> bool:
    return isinstance(field.type, StringType)


def value_of(row: Bytes, field: Field) -> KeyValue:
    """Return a field of one record (row: 1 by size)."""
    if is_string(field):
        return strings_of(row, field)[0]
    return values_of(row, field, is_signed(field.type))[0]
