"""What programs of the Dynamic Tracing Guide take for granted and a kernel may not have:
structures by tag, and constants that are macros of C."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dtypes import LONG, ArrayType, DType, Member, StructType
from kinst.dlang.types.typenames import typedef

# Address families, for inet_ntop(): of Linux (include/linux/socket.h).
CONSTANTS = {"AF_INET": 2, "AF_INET6": 10}


def _bytes(name: str, count: int) -> Member:
    size = 16 // count
    return Member(name, ArrayType(typedef(f"uint{8 * size}_t"), count), 0)


class _Members:
    """See core.dtypes.MemberSource."""

    def members(self, struct: StructType) -> Sequence[Member]:
        return _MEMBERS.get(struct.name or struct.key, ())


_SOURCE = _Members()
_ADDRESS = StructType("union", "", 16, "in6_u", _SOURCE)
_MEMBERS = {
    # As Linux has it (include/uapi/linux/in6.h).
    "in6_u": (_bytes("u6_addr8", 16), _bytes("u6_addr16", 8), _bytes("u6_addr32", 4)),
    "in6_addr": (Member("in6_u", _ADDRESS, 0),),
    "timespec": (Member("tv_sec", typedef("time_t"), 0), Member("tv_nsec", LONG, 64)),
    "timeval": (Member("tv_sec", typedef("time_t"), 0), Member("tv_usec", LONG, 64)),
}


def structure(kind: str, tag: str) -> DType | None:
    """The structure of this tag; None for others."""
    if kind != "struct" or tag not in _MEMBERS or tag == "in6_u":
        return None
    return StructType(kind, tag, 16, tag, _SOURCE)
