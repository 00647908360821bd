"""Call frame information: where the caller's frame is at each instruction.

The source is .debug_frame. If a file has no .debug_frame, the source is .eh_frame, which compilers
write unless they are told -fno-asynchronous-unwind-tables. The entries of a whole section are found
once; the rules of a function are computed when they are needed.

Formats: DWARF 5, 6.4, versions 1, 3 and 4 of its entries; Linux Standard Base 5.0, "Exception
Frames", for the differences of .eh_frame.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.system import CallerRule
from kinst.core.words import MASK
from kinst.image.dwarf.reader import Reader
from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import Elf

# Most bytes of padding for a tracer at a function's start, which CFI and DWARF's ranges leave out.
ROOM = 16  # bytes


@dataclass(frozen=True, slots=True)
class InspectedFrame:
    """An instruction at which variables are to be read, with its frame.

    Attributes:
        address: as linked.
        at_entry: whether it is the first instruction of its function.
        cfa: the canonical frame address as a D expression, None if it is not known.
        running_address: maps a linked address to the running address; raises NotHereError if
            nothing is loaded there.
    """

    address: int
    at_entry: bool
    cfa: str | None
    running_address: Callable[[int], int]


_CIE = 0xFFFFFFFF
_NO_OPERAND = {0x00, 0x2D}  # nop; DW_CFA_AARCH64_negate_ra_state
_ONE = {0x2E}  # DW_CFA_GNU_args_size: its operand does not concern the caller


@dataclass(frozen=True, slots=True)
class _Cie:
    """A common information entry (CIE) of call frame information.

    Attributes:
        code_align: bytes by which an operand that advances the address is multiplied.
        data_align: bytes by which an operand that is an offset is multiplied.
        return_register: DWARF number of the return address.
        program: bytes of the initial instructions.
        augmented: whether the CIE's FDEs have augmentation data before their instructions.
        encoding: DW_EH_PE_* encoding of the FDEs' addresses, in .eh_frame.
    """

    code_align: int
    data_align: int
    return_register: int
    program: bytes
    augmented: bool
    encoding: int


# DW_EH_PE_*: the low four bits are a number's format, here as (bytes, signed).
_FORMATS = {0x00: (8, False), 0x02: (2, False), 0x03: (4, False), 0x04: (8, False),
            0x0A: (2, True), 0x0B: (4, True), 0x0C: (8, True)}  # fmt: skip
_FROM_HERE = 0x10  # DW_EH_PE_pcrel


@dataclass(frozen=True, slots=True)
class _State:
    """Rules in force at one instruction, as call frame instructions compute them.

    Attributes:
        cfa: (register, offset) of the canonical frame address, None if it is an expression.
        back: offset from the CFA at which the return address is saved; None if the return address
            is in its register.
        lost: whether the return address cannot be found.
    """

    cfa: tuple[int, int] | None = None
    back: int | None = None
    lost: bool = False


# Binutils for RISC-V begin with a register alone (DW_CFA_def_cfa_register): its offset is 0 then.
_NO_REGISTER = -1
_START = _State((_NO_REGISTER, 0))


class Cfi:
    """Call frame information of one image. open_cfi() makes it."""

    def __init__(self, section: bytes, name: str = ".debug_frame", address: int = 0) -> None:
        """Find the entries of a section with call frame information.

        Args:
            section: bytes of the section.
            name: ".debug_frame" or ".eh_frame".
            address: linked address of the section, for .eh_frame.

        Raises:
            KinstError: the section is damaged.
        """
        self._section = section
        self._name = name
        self._address = address
        self._eh = name == ".eh_frame"
        self._cies: dict[int, _Cie] = {}
        try:
            # (first address, end, offset of the CIE, start and end of the program)
            self._entries = sorted(self._read_eh() if self._eh else self._read())
        except (IndexError, ValueError, KeyError):
            raise KinstError(f"damaged {name}") from None
        self._starts = [entry[0] for entry in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    def _read(self) -> Iterator[tuple[int, int, int, int, int]]:
        data, at = self._section, 0
        while at + 24 <= len(data):
            length, kind = struct.unpack_from("<II", data, at)
            end = at + 4 + length
            if length == 0xFFFFFFFF or end > len(data):
                raise KinstError("damaged .debug_frame, or one of 64-bit DWARF")
            if kind != _CIE and length >= 20:
                low, size = struct.unpack_from("<QQ", data, at + 8)
                yield low, low + size, kind, at + 24, end
            at = end

    def _read_eh(self) -> Iterator[tuple[int, int, int, int, int]]:
        r = Reader(self._section)
        while r.left():
            length = r.number(4)
            start = r.at
            # A file from several compilers may have a terminator (0) between its parts.
            if length == 0xFFFFFFFF or start + length > len(self._section):
                raise ValueError
            back = r.number(4) if length else 0
            if back:
                # The distance from here back to the CIE.
                encoding = self._cie(start - back).encoding
                low = self._encoded(r, encoding)
                size = self._encoded(r, encoding & 0x0F)
                if low:
                    yield low, low + size, start - back, r.at, start + length
            r.at = start + length

    def _encoded(self, r: Reader, encoding: int) -> int:
        size, signed = _FORMATS[encoding & 0x0F]
        base = self._address + r.at if encoding & 0x70 == _FROM_HERE else 0
        return r.number(size, signed) + base & MASK

    def _cie(self, offset: int) -> _Cie:
        if offset not in self._cies:
            length = int.from_bytes(self._section[offset : offset + 4], "little")
            self._cies[offset] = self._made(Reader(self._section[offset + 8 : offset + 4 + length]))
        return self._cies[offset]

    def _made(self, read: Reader) -> _Cie:
        version = read.number(1)
        letters = ""
        while code := read.number(1):
            letters += chr(code)
        if letters and not letters.startswith("z"):
            raise KinstError(f"{self._name} has an augmentation that kinst does not know")
        if version >= 4:
            read.number(2)  # sizes of an address and of a segment
        code_align, data_align = read.uleb(), read.sleb()
        back = read.number(1) if version == 1 else read.uleb()
        encoding = 0
        if letters:
            size = read.uleb()
            end = read.at + size
            for letter in letters[1:]:
                if letter == "R":
                    encoding = read.number(1)
                elif letter == "L":
                    read.number(1)
                elif letter == "P":
                    read.take(_FORMATS[read.number(1) & 0x0F][0])
            read.at = end
        return _Cie(
            code_align, data_align, back, bytes(read.data[read.at :]), bool(letters), encoding
        )

    def rule(self, address: int, register: int | None = None) -> CallerRule | None:
        """Return the rule to find the caller's frame, and one value of the caller, at an
        instruction. Return None if there is no rule, or the rule needs an expression.

        The rule's fields return_register and return_at say where the value is.

        Args:
            address: the instruction's linked address.
            register: DWARF number of the register whose value in the caller is wanted; None if the
                return address is wanted.
        """
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._entries[index][1]:
            index += 1
            if index == len(self._starts) or self._starts[index] - address > ROOM:
                return None
            address = self._starts[index]
        low, _, parent, start, end = self._entries[index]
        try:
            cie = self._cie(parent)
            if register is not None:
                cie = replace(cie, return_register=register)
            program = Reader(self._section[start:end])
            if cie.augmented:
                program.take(program.uleb())
            first = _run(cie, cie.program, _START, _START, 0, None)
            state = _run(cie, bytes(program.data[program.at :]), first, first, low, address)
        except (IndexError, ValueError):
            return None
        if state.cfa is None or state.cfa[0] == _NO_REGISTER or state.lost:
            return None
        return CallerRule(*state.cfa, cie.return_register, state.back)


def _run(
    cie: _Cie, program: bytes, state: _State, initial: _State, at: int, until: int | None
) -> _State:
    """Interpret call frame instructions, and return the rules at the address `until` (None: after
    the last instruction). Raises ValueError for an unknown instruction.

    Args:
        program: the instructions.
        state: rules before the first instruction.
        initial: rules to which DW_CFA_restore goes back.
        at: address at which the first instruction applies.
    """
    read, stack = Reader(program), list[_State]()
    while read.left():
        code = read.number(1)
        high, low = code & 0xC0, code & 0x3F
        step = low if high == 0x40 else None
        if code in (0x02, 0x03, 0x04):
            step = read.number(1 << code - 2)
        if code == 0x01 and cie.encoding:
            raise ValueError("an address in an encoding, which compilers do not use here")
        if step is not None or code == 0x01:
            at = read.number(8) if step is None else at + step * cie.code_align
            if until is not None and at > until:
                return state
        elif code == 0x0A:
            stack.append(state)
        elif code == 0x0B:
            state = stack.pop()
        elif high or code in (0x05, 0x06, 0x07, 0x08, 0x09, 0x10, 0x11, 0x14, 0x15, 0x16):
            state = _register(cie, read, code, state, initial)
        else:
            state = _frame(cie, read, code, state)
    return state


def _register(cie: _Cie, read: Reader, code: int, state: _State, initial: _State) -> _State:
    """Return the rules after a call frame instruction that says where a register is saved. The
    rules change only if the register is cie.return_register."""
    high = code & 0xC0
    which = code & 0x3F if high else read.uleb()
    new = replace(state, lost=True)
    if high == 0x80 or code == 0x05:
        new = replace(state, back=read.uleb() * cie.data_align, lost=False)
    elif code == 0x11:
        new = replace(state, back=read.sleb() * cie.data_align, lost=False)
    elif high == 0xC0 or code == 0x06:
        new = replace(state, back=initial.back, lost=initial.lost)
    elif code == 0x08:
        new = replace(state, back=None, lost=False)
    elif code in (0x09, 0x14):
        read.uleb()
    elif code == 0x15:
        read.sleb()
    elif code in (0x10, 0x16):
        read.take(read.uleb())
    return new if which == cie.return_register else state


def _frame(cie: _Cie, read: Reader, code: int, state: _State) -> _State:
    """Return the rules after a call frame instruction that says how the CFA is computed. Raises
    ValueError for an unknown instruction."""
    if code in _NO_OPERAND:
        return state
    if code in _ONE:
        read.uleb()
        return state
    if code == 0x0C:
        return replace(state, cfa=(read.uleb(), read.uleb()))
    if code == 0x12:
        return replace(state, cfa=(read.uleb(), read.sleb() * cie.data_align))
    if code == 0x0F:
        read.take(read.uleb())
        return replace(state, cfa=None)
    if state.cfa is None or code not in (0x0D, 0x0E, 0x13):
        raise ValueError(f"call frame instruction {code:#x}")
    register, offset = state.cfa
    if code == 0x0D:
        return replace(state, cfa=(read.uleb(), offset))
    moved = read.uleb() if code == 0x0E else read.sleb() * cie.data_align
    return replace(state, cfa=(register, moved))


def open_cfi(elf: Elf) -> Cfi | None:
    """Return the call frame information of an image; None if the image has none.

    Its addresses are linked addresses; in a relocatable file, addresses of the file's layout.

    Raises:
        KinstError: the section is damaged.
    """
    section = DebugSections(elf).array("frame")
    if len(section):
        return Cfi(section.tobytes())
    # The .eh_frame of a relocatable file is not used: it would have to be relocated first.
    eh_frame = None if elf.relocatable else elf.section(".eh_frame")
    data = elf.data(eh_frame) if eh_frame is not None else b""
    return Cfi(data, ".eh_frame", eh_frame.address) if eh_frame is not None and data else None
