"""Description of a GDB stub's registers, and reading and writing registers by name.

Source: "Debugging with GDB", appendix "Target Descriptions": registers come in the order of the
features; the attribute regnum restarts the numbering; the g packet holds the registers in order of
number, with bitsize/8 bytes each.

Tested by tests/wire/test_rsp.py."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.wire.rsp import Rsp

_MAX_INCLUDES = 64
_MOST_PARTS = 1 << 12  # replies that make a file of the description
_MOST_NUMBER, _MOST_BITS = 1 << 16, 1 << 16  # of registers; the largest vectors have 2,048 bytes


@dataclass(frozen=True, slots=True)
class RegisterInfo:
    """Description of a register of a GDB stub.

    Attributes:
        name: as the stub spells it.
        number: number in p and P packets.
        size: bytes.
        offset: offset in bytes in the g packet.
    """

    name: str
    number: int
    size: int
    offset: int


def read_annex(rsp: Rsp, annex: str) -> str:
    """Return the text of a file of the stub's target description. Raises TargetError if the stub
    does not have the file.

    Args:
        annex: name of the file, such as target.xml.
    """
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


def with_offsets(registers: Sequence[tuple[str, int, int]]) -> tuple[RegisterInfo, ...]:
    """Return the descriptions of registers, with their offsets in the g packet.

    Args:
        registers: (name, number, bytes) of each register, in any order.
    """
    out = []
    offset = 0
    for name, number, size in sorted(registers, key=lambda r: r[1]):
        out.append(RegisterInfo(name, number, size, offset))
        offset += size
    return tuple(out)


def describe(rsp: Rsp, fallback: Sequence[tuple[str, int]] = ()) -> tuple[RegisterInfo, ...]:
    """Return the descriptions of all registers of a stub.

    Args:
        fallback: (name, bytes) of each register in gdb's default order for the ISA, for a stub
            without a target description.

    Raises:
        TargetError: the stub has no target description, and there is no fallback.
    """
    if "qXfer:features:read" not in rsp.features:
        if not fallback:
            raise TargetError("the GDB stub does not describe its registers (no target.xml)")
        return with_offsets([(name, i, size) for i, (name, size) in enumerate(fallback)])
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
                    raise TargetError(
                        f"the GDB stub's {annex} includes a file of the invalid name"
                        f" {included[:40]!r}"
                    )
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
    return with_offsets(registers)


def _without_prologue(text: str) -> str:
    """Return a target description's XML without its DOCTYPE, which names a file that does not
    exist, and with the namespace prefix xi: declared."""
    start = text.find("<!DOCTYPE")
    if start >= 0:
        _, _, rest = text[start:].partition(">")
        text = text[:start] + rest
    if "xi:include" in text and "xmlns:xi" not in text:
        text = text.replace("<target", '<target xmlns:xi="http://www.w3.org/2001/XInclude"', 1)
    return text


class Registers(Mapping[str, int]):
    """The registers of a CPU at a stop, as a mapping from name to value.

    Registers that the g packet leaves out (some 190 system registers on arm64 and riscv64) are read
    when they are looked up. Registers that the stub cannot read are absent. After expire(), looking
    up a register that has not been read raises TargetError."""

    def __init__(self, rsp: Rsp, thread: str, values: dict[str, int],
                 asked: Mapping[str, RegisterInfo]) -> None:  # fmt: skip
        """Keep the register values of a CPU that were read at a stop.

        Args:
            thread: the stub's name of the CPU.
            values: the values that have been read, by register name.
            asked: registers that are read only when they are looked up, since the g packet left
                them out: their descriptions, by name.
        """
        self._rsp = rsp
        self._thread = thread
        self._values = values
        self._asked = dict(asked)
        self._expired = False

    def expire(self) -> None:
        """Forbid further reads of registers, because the machine is about to run. Values that have
        been read stay available."""
        self._expired = True

    def __getitem__(self, name: str) -> int:
        if name in self._asked:
            self._ask([name])
        return self._values[name]

    def must(self, name: str) -> int:
        """Return the value of a register. Raises TargetError if the stub does not know the
        register."""
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
            raise TargetError(
                f"the register {names[0]} cannot be read any more: the machine has resumed"
            )
        registers = [self._asked.pop(name) for name in names]
        select = self._rsp.select_request(self._thread)
        replies = self._rsp.pipeline([*select, *(b"p%x" % r.number for r in registers)])
        for register, text in zip(registers, replies[len(select) :], strict=True):
            if len(text) == 2 * register.size and b"x" not in text:
                self._values[register.name] = _number(text)


class RegisterFile:
    """Reader and writer of a stub's integer registers by name. Registers have up to 8 bytes and are
    little-endian."""

    def __init__(self, rsp: Rsp, registers: Sequence[RegisterInfo]) -> None:
        self._rsp = rsp
        self._integers = tuple(r for r in registers if r.size <= 8 and r.name)

    def write(self, thread: str, values: Mapping[str, int]) -> None:
        """Write registers of a stopped CPU.

        Args:
            thread: the stub's name of the CPU.
            values: new values by register name.
        """
        self._rsp.ask_ok(self.write_requests(thread, values), "write registers")

    def write_requests(self, thread: str, values: Mapping[str, int]) -> list[bytes]:
        """Return the requests that write registers, for the caller to send. The stub answers each
        with OK.

        Args:
            thread: the stub's name of the CPU.
            values: new values by register name.
        """
        by_name = {r.name: r for r in self._integers}
        if absent := [name for name in values if name not in by_name]:
            raise TargetError(f"the GDB stub has no register {absent[0]}")
        requests = [
            b"P%x=%b" % (by_name[name].number, _hex(value, by_name[name].size))
            for name, value in values.items()
        ]
        return [*self._rsp.select_request(thread), *requests]

    def rewrite(self, thread: str, name: str, distance: int) -> None:
        """Read a register that the stub's description leaves out, and write the same value back.
        This is for registers on which a write has a further effect, such as to arm a timer.

        Args:
            thread: the stub's name of the CPU.
            name: name of another register of the same size, which the stub's description has.
            distance: number of the register to rewrite, minus the number of the register `name`.
        """
        like = next((r for r in self._integers if r.name == name), None)
        if like is None:
            raise TargetError(f"the GDB stub has no register {name}")
        number = like.number + distance
        select = self._rsp.select_request(thread)
        *_, value = self._rsp.pipeline([*select, b"p%x" % number])
        if len(value) != 2 * like.size:
            raise TargetError(
                f"the GDB stub has no register whose number is {name}'s plus {distance}"
            )
        self._rsp.ask_ok([b"P%x=%b" % (number, value)], "write a register")

    def read(self, thread: str) -> Registers:
        """Read the registers of a CPU with a g packet, and return them. Registers that the packet
        leaves out are read when they are looked up.

        Args:
            thread: the stub's name of the CPU.
        """
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
        raise TargetError(
            f"the GDB stub gives a register the invalid value {text[:40]!r}"
        ) from error
