"""One test for each class of instruction: the exact bytes expected, assembled by hand."""

from __future__ import annotations

import struct

import pytest
from iced_x86 import Code, OpCodeInfo

from kinst.core.displaced import Onward, Refused, Relocated
from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa import _x86, load, names

AT = 0xFFFFFFFF81000100
TO = 0xFFFFFFFF9FE00000


def rel(end: int, target: int) -> str:
    return struct.pack("<i", target - end).hex()


def displaced(isa: Isa, code: str) -> tuple[str, int]:
    moved = isa.displace(bytes.fromhex(code), AT, TO)
    assert isinstance(moved, Relocated), moved
    return moved.code.hex(), moved.original_at


def back(size: int, original: int) -> str:
    """Return the jmp from TO + size to the address after the original."""
    return "e9" + rel(TO + size + 5, AT + original)


@pytest.mark.parametrize(
    "code",
    [
        "90", "0f1f440000", "4889c3", "50", "5c", "9c", "9d", "fa", "fb", "f3a4",
        "f348ab", "f0ff07", "65488b042500000000", "0f30", "0f32", "0fa2", "0f31", "f390", "ee",
        "ec", "0f01ca", "0f01cb", "0f20d8", "0f23f8", "0f0138", "0fae27", "8ed8", "0f01e8",
        "f20f01ff", "66662e0f1f840000000000",
    ],
)  # fmt: skip
def test_copied_as_it_is(isa: Isa, code: str) -> None:
    size = len(code) // 2
    assert displaced(isa, code) == (code + back(size, size), 0)


def test_rip_relative_displacement_is_adjusted(isa: Isa) -> None:
    # mov rax, [rip + 0x1000]; cmp dword [rip + 0x10], imm32 (the immediate comes after)
    code = "488b0500100000"
    assert displaced(isa, code)[0] == "488b05" + rel(TO + 7, AT + 7 + 0x1000) + back(7, 7)
    code = "813d1000000078563412"
    expected = "813d" + rel(TO + 10, AT + 10 + 0x10) + "78563412" + back(10, 10)
    assert displaced(isa, code)[0] == expected


def test_per_cpu_operand_out_of_reach_becomes_absolute(isa: Isa) -> None:
    """gs:[rip + x] means per-CPU offset 0x1fa40, from below the top 2 GB."""
    at, to = 0xFFFFFFFF81000100, 0xFFFFFFFF70000000
    code = b"\x65\xff\x05" + struct.pack("<i", (0x1FA40 - (at + 7)) % (1 << 64))
    moved = isa.displace(code, at, to)
    assert isinstance(moved, Relocated)
    # inc dword ptr gs:[0x1fa40]: ModRM 04, SIB 25
    assert moved.code[:8].hex() == "65ff042540fa0100"


def test_jumps_are_widened(isa: Isa) -> None:
    assert displaced(isa, "eb10") == ("e9" + rel(TO + 5, AT + 2 + 0x10), -1)
    assert displaced(isa, "e900010000") == ("e9" + rel(TO + 5, AT + 5 + 0x100), -1)
    assert displaced(isa, "7480")[0] == "0f84" + rel(TO + 6, AT + 2 - 0x80) + back(6, 2)
    assert displaced(isa, "0f8f00020000")[0] == "0f8f" + rel(TO + 6, AT + 6 + 0x200) + back(6, 6)


@pytest.mark.parametrize("opcode", ["e0", "e1", "e2", "e3", "67e3"])
def test_loops_hop(isa: Isa, opcode: str) -> None:
    n = len(opcode) // 2 + 1  # opcode, distance
    taken = "e9" + rel(TO + n + 10, AT + n + 0x20)
    assert displaced(isa, opcode + "20")[0] == opcode + "05" + back(n, n) + taken
    # If the next instruction's code comes after it, over the way to the target.
    site = Site(Function("vmlinux", "f", AT, n), 0, bytes.fromhex(opcode + "20"))
    made = isa.trampoline(site, b"", TO, (), b"", Onward(falls_into=AT + n))
    assert isinstance(made, Relocated)
    assert made.code.hex() == opcode + "02eb05e9" + rel(TO + n + 7, AT + n + 0x20)


def test_calls_push_the_original_return_address(isa: Isa) -> None:
    pushed = "68" + struct.pack("<I", (AT + 5) & 0xFFFFFFFF).hex()
    assert displaced(isa, "e800100000") == (pushed + "e9" + rel(TO + 10, AT + 5 + 0x1000), -1)
    pushed = "68" + struct.pack("<I", (AT + 2) & 0xFFFFFFFF).hex()
    assert displaced(isa, "ffd0") == (pushed + "ffe0", 5)
    assert displaced(isa, "ff13") == (pushed + "ff23", 5)
    pushed = "68" + struct.pack("<I", (AT + 3) & 0xFFFFFFFF).hex()
    assert displaced(isa, "41ffd3") == (pushed + "41ffe3", 5)
    assert displaced(isa, "3effd0") == (pushed + "3effe0", 5)
    # call [rsp]: the push has moved rsp, so the operand is 8 bytes further up
    assert displaced(isa, "ff1424") == (pushed + "ff642408", 5)
    pushed = "68" + struct.pack("<I", (AT + 4) & 0xFFFFFFFF).hex()
    assert displaced(isa, "ff54247f") == (pushed + "ffa42487000000", 5)
    pushed = "68" + struct.pack("<I", (AT + 6) & 0xFFFFFFFF).hex()
    assert displaced(isa, "ff1500100000")[0] == pushed + "ff25" + rel(TO + 11, AT + 6 + 0x1000)


def test_ud2_traps_at_its_copy(isa: Isa) -> None:
    """A WARN continues after its trap; the planner must translate the copy's address."""
    assert displaced(isa, "0f0b") == ("0f0b" + back(2, 2), 0)


def test_breakpoints_behind_a_return_are_no_instructions(isa: Isa) -> None:
    code = bytes.fromhex("c3cccccccc90cceb00cccc0f0bcc55")
    found = [(i.address - AT, i.code.hex()) for i in isa.decode(code, AT)]
    assert found == [(0, "c3"), (5, "90"), (6, "cc"), (7, "eb00"), (11, "0f0b"), (14, "55")]


@pytest.mark.parametrize("code", ["c3", "c21000", "f3c3", "ffe0", "ff20", "3effe0"])
def test_what_does_not_come_back_is_copied_alone(isa: Isa, code: str) -> None:
    assert displaced(isa, code) == (code, 0)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("f30f1efa", "find it there"),
        ("0fb9c0", "looks up"), ("0fff4005", "looks up"), ("0fb9", "known"),
        ("cc", "looks up"), ("cd80", "looks up"),
        ("f1", "looks up"), ("f4", "slept"), ("0f01c9", "slept"), ("0f01fb", "slept"),
        ("0f01f8", "gs"), ("8ee8", "gs"), ("0fa9", "gs"), ("f3480faed8", "gs"),
        ("8ed0", "holds back"), ("0fb230", "holds back"), ("0f22d8", "unmap"),
        ("0f22e0", "unmap"), ("0f05", "kernel"), ("0f07", "kernel"), ("0f34", "kernel"),
        ("0f35", "kernel"), ("48cf", "kernel"), ("cf", "kernel"), ("48cb", "code segment"),
        ("ff28", "code segment"), ("ff18", "code segment"), ("c7f800000000", "transaction"),
        ("0f01d8", "somewhere else"), ("0f01c2", "somewhere else"), ("66e900000000", "prefix"),
        ("ffd4", "stack"), ("ff5424f8", "itself writes"), ("ff5424f1", "itself writes"),
        ("ff5424ff", "itself writes"), ("67ff1424", "32-bit"), ("67488b0500000000", "32-bit"),
        ("06", "known"), ("4889", "known"), ("9090", "known"), ("", "known"),
    ],
)  # fmt: skip
def test_refused_with_a_reason(isa: Isa, code: str, word: str) -> None:
    moved = isa.displace(bytes.fromhex(code), AT, TO)
    assert isinstance(moved, Refused), code
    assert word in moved.reason


def test_jump_patch(isa: Isa) -> None:
    assert isa.jump_patch(4, AT, TO) is None
    assert isa.jump_patch(5, AT, TO) == bytes.fromhex("e9" + rel(AT + 5, TO))
    assert isa.jump_patch(7, AT, TO) == bytes.fromhex("e9" + rel(AT + 5, TO) + "cccc")
    assert isa.jump_patch(5, AT, AT + (1 << 31) + 5) is None
    assert isa.jump_patch(5, AT, AT + (1 << 31) + 4) is not None


def test_trap_patch_is_one_byte(isa: Isa) -> None:
    assert [isa.trap_patch(size) for size in (1, 2, 15)] == [b"\xcc"] * 3 == [isa.breakpoint] * 3


def test_decode_stops_at_what_does_not_decode(isa: Isa) -> None:
    found = list(isa.decode(bytes.fromhex("4889c3 0f01e8 7402 06 90"), AT))
    assert [(i.address - AT, i.code.hex()) for i in found] == [
        (0, "4889c3"), (3, "0f01e8"), (6, "7402"),
    ]  # fmt: skip
    assert [i.text for i in found] == ["mov rbx, rax", "serialize", f"je {AT + 10:#x}"]
    assert [(i.size, i.end) for i in found] == [(3, AT + 3), (3, AT + 6), (2, AT + 8)]


def test_decode_of_more_than_one_piece(isa: Isa) -> None:
    """The code is longer than the pieces that decode() passes to the disassembler, at every
    alignment."""
    unit = bytes.fromhex("48b80123456789abcdef90")  # movabs, nop: 11 bytes
    found = [i.code for i in isa.decode(unit * 20_000, AT)]
    assert found == [unit[:10], unit[10:]] * 20_000


def test_names_and_load() -> None:
    assert "amd64" in names()
    assert load("amd64").name == "amd64"
    with pytest.raises(KinstError, match="did you mean amd64"):
        load("amd46")


# Of sys/regset.h of illumos, from 0: the i386's registers, then the amd64's.
I386 = ("GS", "FS", "ES", "DS", "EDI", "ESI", "EBP", "ESP", "EBX", "EDX", "ECX", "EAX", "TRAPNO",
        "ERR", "EIP", "CS", "EFL", "UESP", "SS")  # fmt: skip
AMD64 = ("R15", "R14", "R13", "R12", "R11", "R10", "R9", "R8", "RDI", "RSI", "RBP", "RBX", "RDX",
         "RCX", "RAX", "TRAPNO", "ERR", "RIP", "CS", "RFL", "RSP", "SS", "FS", "GS", "ES", "DS",
         "FSBASE", "GSBASE")  # fmt: skip
# regs_x86.d of FreeBSD has more names for some.
ALIASES = {"PC": "EIP", "SP": "UESP", "PS": "EFL", "R0": "EAX", "R1": "EBX"}
GDB = {"EFL": "eflags", "RFL": "eflags", "UESP": "rsp", "FSBASE": "fs_base", "GSBASE": "gs_base"}


def test_registers_have_dtrace_names_and_indices(isa: Isa) -> None:
    """Indices are those of FreeBSD's regs_x86.d: i386 names 0 to 18, amd64 names from 19."""
    index = {f"R_{name}": number for number, name in enumerate(I386)}
    index |= {f"R_{name}": 19 + n for n, name in enumerate(AMD64) if name not in I386}
    index |= {f"R_{name}": index[f"R_{other}"] for name, other in ALIASES.items()}
    known = {r.d_name: r.index for r in isa.registers}
    assert known == {name: n for name, n in index.items() if name not in isa.unavailable_registers}
    assert len(known) == len(isa.registers)
    for register in isa.registers:
        name = ALIASES.get(register.d_name[2:], register.d_name[2:])
        wide = f"r{name[1:].lower()}" if name[0] == "E" and len(name) == 3 else name.lower()
        assert register.gdb_name == GDB.get(name, wide), register.d_name
    by_index: dict[int, tuple[int, str]] = {}
    for register in isa.registers:
        place = (register.slot, register.gdb_name)
        assert by_index.setdefault(register.index, place) == place
        assert 0 <= register.slot < isa.frame_slots
    slots = {r.gdb_name: r.slot for r in isa.registers}
    assert len(set(slots.values())) == len(slots) == isa.frame_slots - 1  # and the exit slot
    assert (slots["rip"], slots["rsp"]) == (isa.pc_slot, isa.sp_slot)


@pytest.mark.parametrize("names", [_x86.ENDS, "reservednop"])
def test_codes_of_mnemonics_are_all_that_iced_x86_has(names: str) -> None:
    """codes_of() looks only at codes whose names begin with a mnemonic."""
    wanted = _x86.numbers(names)
    every = [getattr(Code, name) for name in dir(Code) if name.isupper()]
    assert _x86.codes_of(names) == {one for one in every if OpCodeInfo(one).mnemonic in wanted}
