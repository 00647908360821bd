"""Register descriptions of a GDB stub, and reading registers by name.

Source: "Debugging with GDB", appendix "Target Descriptions": registers come in the order of the
features; regnum, where given, restarts the numbering; the g packet holds them in order of number,
each of bitsize/8 bytes.

Tested by tests/wire/test_rsp.py.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kinst.core.errors import TargetError
from kinst.wire.rsp import Rsp

_MAX_INCLUDES = 64
_MOST_PARTS = 1 << 12  # of a file of the description
_MOST_NUMBER, _MOST_BITS = 1 << 16, 1 << 16  # of registers; the largest vectors have 2,048 bytes


@dataclass(frozen=True, slots=True)
class RegisterInfo:
    """A register of a stub.

    Attributes:
        name: as the stub spells it.
        number: for p and P packets.
        size: bytes.
        offset: bytes from the start of the g packet.
    """

    name: str
    number: int
    size: int
    offset: int


def read_annex(rsp: Rsp, annex: str) -> str:
    """Return one file of the stub's target description."""
    out = bytearray()
    for _ in range(_MOST_PARTS):
        request = f"qXfer:features:read:{annex}:{len(out):x},{rsp.packet_size - 64:x}"
        reply = rsp.ask(request.encode())
        if reply[:1] not in (b"m", b"l"):
            raise TargetError(f"the GDB stub has no {annex} in its target description")
        out += reply[1:]
        if reply[:1] == b"l" or len(reply) == 1:
            return out.decode("utf-8", "replace")
    raise TargetError(f"the GDB stub's {annex} has no end")


def place(registers: Sequence[tuple[str, int, int]]) -> tuple[RegisterInfo, ...]:
    """Return registers with their offsets in the g packet, from (name, number, bytes) in any
    order."""
    out = []
    offset = 0
    for name, number, size in sorted(registers, key=lambda r: r[1]):
        out.append(RegisterInfo(name, number, size, offset))
        offset += size
    return tuple(out)


def describe(rsp: Rsp, fallback: Sequence[tuple[str, int]] = ()) -> tuple[RegisterInfo, ...]:
    """Return the stub's registers.

    Args:
        fallback: (name, bytes) in the order of gdb's default for the ISA, for stubs without a
            target description.

    Raises:
        TargetError: there is neither a description nor a fallback.
    """
    if "qXfer:features:read" not in rsp.features:
        if not fallback:
            raise TargetError("the GDB stub does not describe its registers (no target.xml)")
        return place([(name, i, size) for i, (name, size) in enumerate(fallback)])
    registers: list[tuple[str, int, int]] = []
    todo = ["target.xml"]
    seen = 0
    number = 0
    while todo:
        seen += 1
        if seen > _MAX_INCLUDES:
            raise TargetError("the GDB stub's target description includes itself")
        annex = todo.pop(0)
        try:
            root = ET.fromstring(_without_prologue(read_annex(rsp, annex)))
        except ET.ParseError as error:
            raise TargetError(f"the GDB stub's {annex} is not XML: {error}") from error
        includes = []
        for node in root.iter():
            tag = node.tag.rpartition("}")[2]
            if tag == "include":
                included = node.get("href", "")
                if not included.isprintable():
                    raise TargetError(f"the GDB stub's {annex} includes {included[:40]!r}")
                includes.append(included)
            elif tag == "reg":
                try:
                    number = int(node.get("regnum", str(number)), 0)
                    bits = int(node.get("bitsize", "64"))
                except ValueError:
                    number = bits = -1
                if not 0 <= number < _MOST_NUMBER or not 0 <= bits <= _MOST_BITS:
                    raise TargetError(
                        f"the GDB stub's {annex} describes a register that is impossible:"
                        f" {node.get('name', '')!r:.80}"
                    )
                registers.append((node.get("name", ""), number, bits // 8))
                number += 1
        # An included file comes before what follows its name in the outer file.
        todo[:0] = [name for name in includes if name]
    return place(registers)


def _without_prologue(text: str) -> str:
    """Return XML text without its DOCTYPE, whose file does not exist, and with the namespace xi:
    declared."""
    start = text.find("<!DOCTYPE")
    if start >= 0:
        _, _, rest = text[start:].partition(">")
        text = text[:start] + rest
    if "xi:include" in text and "xmlns:xi" not in text:
        text = text.replace("<target", '<target xmlns:xi="http://www.w3.org/2001/XInclude"', 1)
    return text


class Registers(Mapping[str, int]):
    """The registers of one CPU at one stop.

    Registers that the g packet leaves out (some 190 system registers on arm64 and riscv64) are read
    when they are looked up.  Those that the stub does not have now are absent.  Once expire() was
    called, since the machine runs on, looking up a register that was not read before raises
    TargetError.
    """

    def __init__(self, rsp: Rsp, thread: str, values: dict[str, int],
                 asked: Mapping[str, RegisterInfo]) -> None:  # fmt: skip
        """Hold the values of a stop.

        Args:
            values: by name.
            asked: registers that can be read on demand.
        """
        self._rsp = rsp
        self._thread = thread
        self._values = values
        self._asked = dict(asked)
        self._expired = False

    def expire(self) -> None:
        """Note that the machine is about to run on."""
        self._expired = True

    def __getitem__(self, name: str) -> int:
        if name in self._asked:
            self._ask([name])
        return self._values[name]

    def must(self, name: str) -> int:
        """Return a register that every machine has.  Raises TargetError if this stub does not know
        it."""
        value = self.get(name)
        if value is None:
            raise TargetError(f"the GDB stub does not say what {name} is")
        return value

    def __iter__(self) -> Iterator[str]:
        self._ask(list(self._asked))
        return iter(self._values)

    def __len__(self) -> int:
        self._ask(list(self._asked))
        return len(self._values)

    def _ask(self, names: Sequence[str]) -> None:
        if not names:
            return
        if self._expired:
            raise TargetError(f"the machine has run on since its {names[0]} could be read")
        registers = [self._asked.pop(name) for name in names]
        select = self._rsp.select_request(self._thread)
        replies = self._rsp.pipeline([*select, *(b"p%x" % r.number for r in registers)])
        for register, text in zip(registers, replies[len(select) :], strict=True):
            if len(text) == 2 * register.size and b"x" not in text:
                self._values[register.name] = _number(text)


class RegisterFile:
    """Reads a stub's integer registers (up to 8 bytes each; little-endian) by name."""

    def __init__(self, rsp: Rsp, registers: Sequence[RegisterInfo]) -> None:
        self._rsp = rsp
        self._integers = tuple(r for r in registers if r.size <= 8 and r.name)

    def write(self, thread: str, values: Mapping[str, int]) -> None:
        """Write some registers of a stopped CPU, by name."""
        self._rsp.ask_ok(self.write_requests(thread, values), "write registers")

    def write_requests(self, thread: str, values: Mapping[str, int]) -> list[bytes]:
        """Return the requests that write registers; each is answered OK."""
        by_name = {r.name: r for r in self._integers}
        if absent := [name for name in values if name not in by_name]:
            raise TargetError(f"the GDB stub has no register {absent[0]}")
        requests = [
            b"P%x=%b" % (by_name[name].number, _hex(value, by_name[name].size))
            for name, value in values.items()
        ]
        return [*self._rsp.select_request(thread), *requests]

    def rewrite(self, thread: str, name: str, distance: int) -> None:
        """Write its present value to a register that the stub need not name.

        Args:
            name: a register that the stub names, of the same size.
            distance: how many numbers after that one the register comes.
        """
        like = next((r for r in self._integers if r.name == name), None)
        if like is None:
            raise TargetError(f"the GDB stub has no register {name}")
        number = like.number + distance
        select = self._rsp.select_request(thread)
        *_, value = self._rsp.pipeline([*select, b"p%x" % number])
        if len(value) != 2 * like.size:
            raise TargetError(f"the GDB stub has no register {distance} numbers after {name}")
        self._rsp.ask_ok([b"P%x=%b" % (number, value)], "write a register")

    def read(self, thread: str) -> Registers:
        """Read all that the g packet has; the other registers are read when they are looked up."""
        *_, reply = self._rsp.pipeline([*self._rsp.select_request(thread), b"g"])
        if (reply[:1] == b"E" and len(reply) == 3) or not reply:
            raise TargetError(f"the GDB stub cannot read the registers of CPU thread {thread}")
        values = {}
        missing = {}
        for register in self._integers:
            text = reply[2 * register.offset : 2 * (register.offset + register.size)]
            if len(text) < 2 * register.size:
                missing[register.name] = register
            elif b"x" not in text:
                values[register.name] = _number(text)
        return Registers(self._rsp, thread, values, missing)


def _hex(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "little").hex().encode()
    except OverflowError as error:
        raise TargetError(
            f"{value:#x} does not fit into a register that the GDB stub says has {size} bytes"
        ) from error


def _number(text: bytes) -> int:
    try:
        return int.from_bytes(bytes.fromhex(text.decode("ascii")), "little")
    except ValueError as error:
        raise TargetError(f"the GDB stub says that a register holds {text[:40]!r}") from error
