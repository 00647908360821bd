"""Parts of instructions and kinds of branches, against capstone's own details.

Encodings are drawn at random; kernels have few or none of them.
"""

from __future__ import annotations

import random
from pathlib import Path

import capstone
import pytest
from capstone import x86

from kinst.core.displaced import Relocated
from kinst.isa import load
from kinst.isa._x86_length import LEGACY
from kinst.isa.amd64.parse import VECTOR, parse
from tests.isa.gnu_assembler import assembled

TEXT = 0x1000
PREFIXES = (
    b"",
    b"",
    b"\x66",
    b"\xf3",
    b"\xf2",
    b"\x67",
    b"\x65",
    b"\x2e",
    b"\xf0",
    b"\x48",
    b"\x41",
)
MAPS = (b"", b"", b"\x0f", b"\x0f\x38", b"\x0f\x3a")


def vector(rng: random.Random) -> bytes:
    """Return the start of a VEX, EVEX or XOP encoding."""
    opmap, rest = rng.randrange(256) & 0xF0 | rng.choice((1, 2, 3)), rng.randrange(256)
    starts = (
        bytes([0xC5, rest]),
        bytes([0xC4, opmap, rest]),
        bytes([0x62, opmap, rest | 4, rng.randrange(256)]),
        bytes([0x8F, opmap & 0xE0 | rng.choice((8, 9, 10)), rest & 0xFC]),
    )
    return rng.choice(starts)


def test_amd64_parts_are_where_capstone_has_them() -> None:
    """Prefixes are in any order; a REX that is not directly before the opcode is ignored (SDM
    volume 2, 2.2.1)."""
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    rng, seen, vectors, relative, ignored = random.Random(6), 0, 0, 0, 0
    for _ in range(6000):
        head = vector(rng)
        if rng.random() < 0.7:
            head = b"".join(rng.choice(PREFIXES) for _ in range(3)) + rng.choice(MAPS)
        modrm = rng.choice((0x05, 0x0D, 0x04, 0x44, 0x84, rng.randrange(256), rng.randrange(256)))
        sib = rng.choice((0x24, rng.randrange(256)))  # on rsp, or r12
        code = head + bytes([rng.randrange(256), modrm, sib]) + rng.randbytes(8)
        one = next(disassembler.disasm(code, TEXT), None)
        if one is None or one.mnemonic in ("ud0", "ud1"):
            continue  # capstone leaves out the ModRM of these
        code, encoding = bytes(one.bytes), one.encoding
        found = parse(code)
        assert found is not None, code.hex()
        assert max(found.modrm_at, 0) == encoding.modrm_offset, code.hex()
        memory = [o.mem for o in one.operands if o.type == x86.X86_OP_MEM]
        bases = {one.reg_name(m.base) for m in memory if m.base}
        if found.modrm_at >= 0:
            is_relative = "rip" in bases or "eip" in bases
            assert found.rip_relative == is_relative, code.hex()
            if is_relative:
                assert encoding.disp_offset == found.modrm_at + 1
            if memory and not {"push", "pop"} & {one.mnemonic} and len(memory) == 1:
                assert found.based_on_rsp == bool(bases & {"rsp", "esp"}), code.hex()
            relative += is_relative
        start = code[: found.opcode_at]
        assert {*found.prefixes} <= {*LEGACY} and {*found.prefixes} <= {*start}
        if found.map != VECTOR:
            legacy = [byte for byte in start if byte in LEGACY]
            assert [*found.prefixes] == legacy, code.hex()
            ignored += any(b & 0xF0 == 0x40 and code[k + 1] in LEGACY for k, b in enumerate(start))
        seen += 1
        vectors += found.map == VECTOR
    assert seen > 1500 and vectors > 80 and relative > 200 and ignored > 20, (
        seen, vectors, relative, ignored,
    )  # fmt: skip


def test_amd64_registers_where_others_have_memory(tmp_path: Path) -> None:
    """Moves to and from control and debug registers ignore the two bits for "memory".

    They are copied as they are (SDM volume 2, MOV).
    """
    for opcode in range(0x20, 0x24):
        for modrm in (0x05, 0x0D, 0x15, 0x3D, 0xC5):
            code = bytes([0x0F, opcode, modrm])
            found = parse(code)
            assert found is not None and not found.rip_relative, code.hex()
    code = assembled("amd64", ".intel_syntax noprefix\nmov rbp, cr0", tmp_path)
    assert code[:2] == b"\x0f\x20"
    made = load("amd64").displace(bytes([*code[:2], code[2] & 0x3F]), TEXT, TEXT + 4096)
    assert isinstance(made, Relocated) and made.code[:3] == bytes([*code[:2], code[2] & 0x3F])


def test_amd64_3dnow(tmp_path: Path) -> None:
    """The operation of 0F 0F comes after the operands; 0F 0E is femms, which has none (AMD's
    programmer's manual volume 3, appendix A.1.2)."""
    source = ".intel_syntax noprefix\nfemms\npfadd mm3, [rip + 16]\npf2id mm1, [rsp]"
    isa = load("amd64")
    found = list(isa.decode(assembled("amd64", source, tmp_path), TEXT))
    femms, relative, stack = (parse(one.code) for one in found)
    assert femms is not None and relative is not None and stack is not None
    assert (femms.modrm_at, relative.modrm_at, stack.modrm_at) == (-1, 2, 2)
    assert relative.rip_relative and stack.based_on_rsp
    made = isa.displace(found[1].code, found[1].address, TEXT + 4096)
    assert isinstance(made, Relocated)
    moved = next(iter(isa.decode(made.code, TEXT + 4096)))
    ends = [one.address + one.size for one in (found[1], moved)]
    distances = [int.from_bytes(one.code[3:7], "little", signed=True) for one in (found[1], moved)]
    assert ends[1] + distances[1] == ends[0] + distances[0] == ends[0] + 16


def test_amd64_vector_instructions_without_operands(tmp_path: Path) -> None:
    """These two are the only ones, each with two encodings (SDM volume 2, VZEROUPPER,
    VZEROALL)."""
    for prefix in ("", "{vex3} "):
        source = f".intel_syntax noprefix\n{prefix}vzeroupper\n{prefix}vzeroall"
        for one in load("amd64").decode(assembled("amd64", source, tmp_path), TEXT):
            found = parse(one.code)
            assert found is not None and one.size == (4 if prefix else 3)
            assert found.map == VECTOR and found.modrm_at == -1


def test_amd64_instructions_that_are_younger_than_capstone(tmp_path: Path) -> None:
    names = ["serialize", "pvalidate", "psmash", "rmpupdate", "rmpadjust", "tilerelease",
             "invlpgb", "tlbsync"]  # fmt: skip
    source = "\n".join([".intel_syntax noprefix", *(f"{name}\nnop" for name in names)])
    found = list(load("amd64").decode(assembled("amd64", source, tmp_path), TEXT))
    assert [one.text.split()[0] for one in found[::2]] == names
    assert {one.text for one in found[1::2]} == {"nop"}


def test_amd64_cut_short() -> None:
    for code in ("", "48", "66", "0f", "0f38", "8b", "488b", "c5", "c4e2", "62f1", "c5f877"):
        found = parse(bytes.fromhex(code))
        assert (found is not None) == (code == "c5f877"), code


KINDS = {
    **dict.fromkeys(("br", "braa", "brab", "braaz", "brabz"), ("indirect", False)),
    **dict.fromkeys(("blr", "blraa", "blrab", "blraaz", "blrabz"), ("call", True)),
    **dict.fromkeys(("ret", "retaa", "retab"), ("return", False)),
}


@pytest.mark.parametrize("part", range(4))
def test_arm64_branches_by_register(part: int) -> None:
    """All of Arm's "unconditional branch (register)" that capstone knows, and neighbours."""
    isa, rng, seen = load("arm64"), random.Random(part), set[str]()
    words = [0xD61F0000 | op << 21 | auth << 10 | n << 5 | m for op in (0, 1, 2, 8, 9)
             for auth in (0, 2, 3) for n in (0, 7, 30, 31) for m in (0, 5, 31)]  # fmt: skip
    words += [0xD6000000 | rng.getrandbits(25) for _ in range(300)]
    words += [rng.choice(words) ^ 1 << rng.randrange(25) for _ in range(300)]
    for word in words[part::4]:
        code = word.to_bytes(4, "little")
        one = next(isa.decode(code, TEXT), None)
        if one is None:
            continue
        name = one.text.split()[0]
        flow = isa.flow(code, TEXT)
        expected = KINDS.get(name)
        if expected is not None:
            assert (flow.kind, flow.falls_through) == expected, one.text
            assert flow.target is None
            register = one.text.split()[-1].upper()
            value = "0" if register == "XZR" else f"regs[R_{register}]"
            # A signed address differs from the one in the register.
            assert flow.destination == (value if name == "br" else ""), one.text
            seen.add(name)
    assert {"br", "blr", "ret"} <= seen and len(seen) > 6, seen
