"""Reading one field of many records at once, as a Python list of integers, bytes or strings.

The records are an (n, size) matrix of bytes. Each of its n rows is a record, or an entry of an
aggregation's table.

Tested by tests/consumer/test_values.py and tests/consumer/test_interpreter.py.
"""

from __future__ import annotations

import numpy as np

from kinst.consumer.rings import Bytes
from kinst.core.dtypes import StringType
from kinst.core.records import Field, KeyValue
from kinst.dlang.typed import is_signed


def values_of(rows: Bytes, field: Field, signed: bool) -> list[int]:
    """Return the value of an integer field in each record, in the order of the records.

    Args:
        rows: the records, an (n, size) matrix of bytes.
        signed: whether the integers are signed.
    """
    part = np.ascontiguousarray(rows[:, field.offset : field.offset + field.size])
    result: list[int] = part.view(f"<{'i' if signed else 'u'}{field.size}").ravel().tolist()
    return result


def bytes_of(rows: Bytes, field: Field) -> list[bytes]:
    """Return the bytes of a field in each record, in the order of the records.

    Args:
        rows: the records, an (n, size) matrix of bytes.
    """
    part = np.ascontiguousarray(rows[:, field.offset : field.offset + field.size])
    return [
        row.tobytes() for row in part
    ]  # numpy has no views of 0 bytes: a structure may have none


def strings_of(rows: Bytes, field: Field) -> list[bytes]:
    """Return the value of a string field in each record, without its NUL, in the order of the
    records.

    Args:
        rows: the records, an (n, size) matrix of bytes.
    """
    return [value.partition(b"\0")[0] for value in bytes_of(rows, field)]


def is_string(field: Field) -> bool:
    return isinstance(field.type, StringType)


def value_of(row: Bytes, field: Field) -> KeyValue:
    """Return the value of an integer or string field in one record.

    Args:
        row: the record, a (1, size) matrix of bytes.
    """
    if is_string(field):
        return strings_of(row, field)[0]
    return values_of(row, field, is_signed(field.type))[0]
