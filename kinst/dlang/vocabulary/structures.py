"""Structures that the Dynamic Tracing Guide's programs use and a kernel may not have.

Tested by tests/dlang/check/test_library.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dtypes import LONG, Member, StructType
from kinst.dlang.vocabulary.type_names import typedef

_MEMBERS = {
    "timespec": (Member("tv_sec", typedef("time_t"), 0), Member("tv_nsec", LONG, 64)),
    "timeval": (Member("tv_sec", typedef("time_t"), 0), Member("tv_usec", LONG, 64)),
}
_SIZE = 16


class _Times:
    """The MemberSource of these structures."""

    def members(self, struct: StructType) -> Sequence[Member]:
        return _MEMBERS[struct.name]


_TIMES = _Times()
GUIDE_STRUCTURES = {tag: StructType("struct", tag, _SIZE, tag, _TIMES) for tag in _MEMBERS}
