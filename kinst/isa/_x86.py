"""Decoding of x86-64 by iced-x86. For instructions that iced-x86 does not know, the length comes
from the opcode maps (_x86_length.py).

Completion loads this module alone while a user types, because the rest of the instruction set takes
too long to load. Instructions that iced-x86 does not know have the code UNKNOWN, and are spelled as
bytes (.byte). No-operations that are reserved for later use are spelled as bytes, too.

Tested by tests/isa/amd64/test_encoding_space.py and tests/isa/test_plain_text.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from iced_x86 import (
    Code,
    Decoder,
    FormatMnemonicOptions,
    Formatter,
    FormatterSyntax,
    Instruction,
    MemorySizeOptions,
    Mnemonic,
    OpCodeInfo,
)

from kinst.core.words import MASK
from kinst.isa._x86_length import LONGEST, length_at

BITS = 64
UNKNOWN = Code.INVALID
INT3 = Code.INT3
UDB = b"\xd6"  # SDM volume 2, "UD": younger than iced-x86 1.21
ENDS = "ret retf jmp ud2"


def numbers(names: str) -> frozenset[int]:
    """Return iced-x86's number of each mnemonic in `names`, such as "nop ret"."""
    return frozenset(getattr(Mnemonic, name.upper()) for name in names.split())


@cache
def codes_of(names: str) -> frozenset[int]:
    """Return all of iced-x86's codes of the mnemonics in `names`, such as "nop ret". A mnemonic has
    a code for each of its opcodes and operand forms."""
    wanted, prefixes = numbers(names), tuple(names.upper().split())
    # The names of iced-x86's codes begin with the mnemonic (RETNQ, JMP_REL8_64), except those of
    # vector instructions. OpCodeInfo decides, but takes 5 ms for all codes.
    some = (getattr(Code, name) for name in dir(Code) if name.startswith(prefixes))
    return frozenset(code for code in some if OpCodeInfo(code).mnemonic in wanted)


def never_falls_through() -> frozenset[int]:
    """Return iced-x86's codes of the instructions after which control never continues with the next
    instruction (returns, jumps, ud2). Compilers put breakpoints after these instructions; the
    breakpoints are never executed."""
    return codes_of(ENDS)


@cache
def unknown() -> frozenset[int]:
    """Return iced-x86's codes for unknown instructions: the code of bytes that do not decode, and
    the codes of no-operations that later processors may give a meaning."""
    return codes_of("reservednop") | {UNKNOWN}


@cache
def _formatter() -> Formatter:
    formatter = Formatter(FormatterSyntax.INTEL)
    formatter.hex_prefix, formatter.hex_suffix, formatter.uppercase_hex = "0x", "", False
    formatter.small_hex_numbers_in_decimal = True
    formatter.space_after_operand_separator = True
    formatter.space_between_memory_add_operators = True
    formatter.memory_size_options = MemorySizeOptions.ALWAYS
    formatter.rip_relative_addresses = True
    formatter.branch_leading_zeros = formatter.show_branch_size = False
    return formatter


def sizes_and_codes(code: bytes, address: int) -> tuple[list[int], list[int]]:
    """Return two lists: the size of each instruction in the bytes `code`, in order, and the number
    that iced-x86 has for each instruction (its Code). Both lists end before the first instruction
    whose length is not known."""
    decoder = Decoder(BITS, code, ip=address)
    sizes, codes = list[int](), list[int]()
    at = 0
    while at < len(code):
        decoder.position, decoder.ip = at, address + at & MASK
        for instruction in decoder:
            kind, size = instruction.code, instruction.len
            if not kind:
                break
            sizes.append(size)
            codes.append(kind)
            at += size
        else:
            break
        size = length_at(code, at)
        if not size:
            break
        sizes.append(size)
        codes.append(UNKNOWN)
        at += size
    return sizes, codes


def first(code: bytes, address: int) -> Instruction | None:
    """Return the instruction at the start of `code`; None if it is unknown or cut short."""
    instruction = Decoder(BITS, code[:LONGEST], ip=address).decode()
    return None if instruction.code in unknown() else instruction


def only(code: bytes, address: int) -> Instruction | None:
    """Return the instruction that `code` consists of; None if `code` is not exactly one known
    instruction."""
    instruction = first(code, address)
    return instruction if instruction is not None and instruction.len == len(code) else None


def listed(code: bytes, address: int) -> Iterator[Instruction]:
    """Yield the instructions of code in order, up to the first unknown instruction."""
    for instruction in Decoder(BITS, code, ip=address):
        if instruction.code in unknown():
            return
        yield instruction


def name(instruction: Instruction) -> str:
    """Return an instruction's mnemonic as it is shown to the user, without prefixes."""
    return _formatter().format_mnemonic(instruction, FormatMnemonicOptions.NO_PREFIXES)


def texts(code: bytes, address: int) -> Iterator[tuple[int, int, str]]:
    """Yield (offset, size, text) of each instruction in code, up to the first whose length is not
    known. Breakpoints that are never executed (never_falls_through()) are left out."""
    ends, spell = never_falls_through(), _formatter().format
    decoder = Decoder(BITS, code, ip=address)
    before, at = UNKNOWN, 0
    while at < len(code):
        decoder.position, decoder.ip = at, address + at & MASK
        instruction = decoder.decode()
        kind, size = instruction.code, instruction.len
        if kind == UNKNOWN:
            size = length_at(code, at)
            if not size:
                return
        if kind != INT3 or before not in ends:
            before = kind
            if kind in unknown():
                yield at, size, spelled(code[at : at + size])
            else:
                yield at, size, "nop" if kind == Code.NOPW else spell(instruction)
        at += size


def spelled(code: bytes) -> str:
    """Return the text of an instruction that iced-x86 does not know, in a form that assemblers take
    (.byte)."""
    if code == UDB:
        return "udb"
    return ".byte " + ", ".join(f"{byte:#04x}" for byte in code)


def disassemble(code: bytes, address: int) -> Iterator[tuple[int, str]]:
    """Yield (offset, text) of each instruction in code, for completion (_plain.py)."""
    return ((at, text) for at, _, text in texts(code, address))
