"""Subroutines on network addresses and byte order: inet_ntoa(), inet_ntop(), htons() and the like.

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

from collections.abc import Callable

from kinst.codegen.firing import Firing, Lowered, Text, Unit
from kinst.codegen.helpers.branching import both, byte_of, either, loop, put, step, when
from kinst.codegen.helpers.memory_access import read
from kinst.codegen.ssa import IrFunction, IrLocal, IrValue, const
from kinst.codegen.subroutines.arguments import (
    DOT,
    Args,
    SubroutineCode,
    fault_if_failed,
    number,
    pointer,
    subroutine,
    wide,
)
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_ILLOP

INET_ROOM = 48  # INET6_ADDRSTRLEN is 46


def _number(
    code: IrFunction, at: IrLocal, dst: IrValue, value: IrValue, base: int, digits: int
) -> None:
    """Emit LLVM IR that appends a number to a text, without leading zeros.

    Args:
        at: index in the text, which the emitted code advances.
        dst: address of the text.
        value: the number.
        base: the number's base, 10 or 16.
        digits: the largest number of digits.
    """
    started = code.local(64)
    code.set(started, const(0))
    for place in reversed(range(digits)):
        part = code.op("udiv", value, const(base**place))
        number = code.op("urem", part, const(base))
        low = code.icmp("ule", number, 9)
        start = code.select(low, const(ord("0")), const(ord("a") - 10))
        letter = code.op("add", number, start)
        shown = either(code, code.icmp("ne", part, 0), const(int(place == 0), 1))
        when(code, shown, lambda letter=letter: put(code, at, letter, dst))  # type: ignore[misc]


def _dotted(code: IrFunction, at: IrLocal, dst: IrValue, address: IrValue) -> None:
    for k in range(4):
        if k:
            put(code, at, const(DOT), dst)
        _number(code, at, dst, byte_of(code, address, const(k)), 10, 3)


def _write_inet4(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function inet4(dst, address of the 4 bytes), which stores an IPv4 address in
    dotted decimal.
    """
    code = unit.function(name, 2, 0)
    dst, address = code.params
    at = code.local(64)
    _dotted(code, at, dst, address)
    put(code, at, const(0), dst)
    code.ret()
    return code


def _zeros(code: IrFunction, group: Callable[[IrValue], IrValue]) -> tuple[IrLocal, IrLocal]:
    """Emit a loop that finds the longest run of zero groups of an IPv6 address; return variables
    with the run's start and length.  If two runs are equally long, the first one counts.  If no run
    is longer than one group, the start is 8 (after the last group) and the length is 1.

    Args:
        group: emits a load of the group with this index, and returns the group.
    """
    best, best_size, run = code.local(64, 8), code.local(64, 1), code.local(64)
    at = code.local(64)

    def look() -> None:
        here = code.get(at)
        zero = code.icmp("eq", group(here), 0)
        code.set(run, code.select(zero, code.op("add", code.get(run), 1), const(0)))
        longer = code.icmp("ugt", code.get(run), code.get(best_size))
        start = code.op("sub", code.op("add", here, 1), code.get(run))
        code.set(best, code.select(longer, start, code.get(best)))
        code.set(best_size, code.select(longer, code.get(run), code.get(best_size)))
        step(code, at)

    loop(code, lambda: code.icmp("ult", code.get(at), 8), look)
    return best, best_size


def _write_inet6(unit: Unit, name: str) -> IrFunction:
    """Return the LLVM function inet6(dst, address of the 16 bytes), which stores the text of
    inet_ntop(3): the longest run of at least two zero groups becomes "::", and an embedded IPv4
    address is in dotted decimal.
    """
    code = unit.function(name, 2, 0)
    dst, address = code.params
    at, here = code.local(64), code.local(64)

    def group(place: IrValue) -> IrValue:
        where = code.op("shl", place, 1)
        high = code.op("shl", byte_of(code, address, where), 8)
        return code.op("or", high, byte_of(code, address, code.op("add", where, 1)))

    start, count = _zeros(code, group)
    from_start = code.icmp("eq", code.get(start), 0)
    mapped = both(code, code.icmp("eq", code.get(count), 5),
                  code.icmp("eq", group(const(5)), 0xFFFF))  # fmt: skip
    compatible = code.icmp("eq", code.get(count), 6)
    embedded = both(code, from_start, either(code, mapped, compatible))
    groups = code.select(embedded, const(6), const(8))

    def colon() -> None:
        put(code, at, const(ord(":")), dst)

    def number() -> None:
        when(code, code.icmp("eq", code.get(here), code.get(start)), skip, one)

    def skip() -> None:
        colon()
        code.set(here, code.op("add", code.get(here), code.get(count)))
        when(code, code.icmp("eq", code.get(here), 8), colon)

    def one() -> None:
        when(code, code.icmp("ne", code.get(here), 0), colon)
        _number(code, at, dst, group(code.get(here)), 16, 4)
        step(code, here)

    loop(code, lambda: code.icmp("ult", code.get(here), groups), number)

    def dotted() -> None:
        colon()
        _dotted(code, at, dst, code.op("add", address, 12))

    when(code, embedded, dotted)
    put(code, at, const(0), dst)
    code.ret()
    return code


def _inet(name: str, size: int, address: IrValue, firing: Firing) -> Lowered:
    code = firing.code
    # Other code may read the text up to its bound, so all of INET_ROOM is reserved.
    room, bytes_ = firing.text_room(INET_ROOM), firing.text_room(16)
    fault_if_failed(firing, read(firing, bytes_, address, const(size)), address)
    write = {"inet4": _write_inet4, "inet6": _write_inet6}[name]
    code.call(firing.unit.helper(name, write), (room, bytes_))
    return Text(room, INET_ROOM)


@subroutine("string inet_ntoa(in_addr_t *)")
def inet_ntoa(firing: Firing, args: Args) -> Lowered:
    return _inet("inet4", 4, pointer(firing, args[0]), firing)


@subroutine("string inet_ntoa6(struct in6_addr *)")
def inet_ntoa6(firing: Firing, args: Args) -> Lowered:
    return _inet("inet6", 16, pointer(firing, args[0]), firing)


@subroutine("string inet_ntop(int, void *)")
def inet_ntop(firing: Firing, args: Args) -> Lowered:
    code = firing.code
    family, address = number(firing, args[0]), pointer(firing, args[1])
    families = firing.unit.machine.dialect.families
    if families is None:
        raise KinstError(
            "inet_ntop() is not available: kinst does not know how this kernel numbers address"
            " families"
        )
    old, new = (code.icmp("eq", family, one) for one in (families.inet, families.inet6))
    neither = code.op("xor", code.op("or", old, new), const(1, 1))
    firing.faults.add(code, neither, FAULT_ILLOP, family)
    yes, no, end = (code.fresh(n) for n in ("inet4", "inet6", "inet"))
    code.branch(old, yes, no)
    texts: list[tuple[IrValue, str]] = []
    for label, name, size in ((yes, "inet4", 4), (no, "inet6", 16)):
        code.block(label)
        text = _inet(name, size, address, firing)
        assert isinstance(text, Text)
        texts.append((text.address, code.at))
        code.jump(end)
    code.block(end)
    return Text(code.phi(64, texts), INET_ROOM)


def _byte_swap(text: str, size: int) -> SubroutineCode:
    """Declare a subroutine that converts a number of `size` bytes between the traced machine's byte
    order and the network's.  All machines of kinst are little-endian.

    Args:
        text: the subroutine's prototype in C.
    """

    def swap(firing: Firing, args: Args) -> Lowered:
        code = firing.code
        value = wide(firing, args[0], signed=False)
        result = const(0)
        for k in range(size):
            byte = code.op("and", code.op("lshr", value, 8 * k), 0xFF)
            result = code.op("or", result, code.op("shl", byte, 8 * (size - 1 - k)))
        return result

    return subroutine(text)(swap)


htons = _byte_swap("uint16_t htons(uint16_t)", 2)
htonl = _byte_swap("uint32_t htonl(uint32_t)", 4)
htonll = _byte_swap("uint64_t htonll(uint64_t)", 8)
ntohs = _byte_swap("uint16_t ntohs(uint16_t)", 2)
ntohl = _byte_swap("uint32_t ntohl(uint32_t)", 4)
ntohll = _byte_swap("uint64_t ntohll(uint64_t)", 8)
