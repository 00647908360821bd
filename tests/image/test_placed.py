"""Relocatable files as if they were linked, against GNU ld's output when it is told to put their
sections where kinst assumes them."""

from __future__ import annotations

import random
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kinst.core.errors import KinstError
from kinst.image.elf import Elf, open_elf
from kinst.image.relocations import PlacedElf, placed, relocated
from tests.image.dwarf_made import CROSS, C

TOOLS = {"amd64": "", "arm64": "aarch64-linux-gnu-", "riscv64": "riscv64-linux-gnu-"}
SOURCES = ("copies.c", "made")
# Branches of each kind backward, forward and to other sections; and relocations for linkers only.
CODE = {
    "amd64": "call back; jmp remote; je front; lea rax, [rip + remote]; mov rax, [rip + datum + 4]",
    "arm64": "bl back; b remote; b.eq front; bl datum + 8; b back - 4",
    "riscv64": "call back; tail remote; beqz a0, front; nop",
}
NUMBERS = {
    "amd64": """
        .long remote, back + 3, front + 0x72345678; .quad datum, remote - 9
        .quad front + 0x7123456789abcdef; .reloc ., R_X86_64_32S, datum - 0x12345678; .long 0
        """,
    "arm64": """.word remote, back + 3, front + 0x72345678; .quad datum, remote - 9
        .quad front + 0x7123456789abcdef; .hword front, front + 2, back + 0x7654
        """,
    "riscv64": """
        .long remote, back + 3, front + 0x72345678; .quad datum, remote - 9
        .quad front + 0x7123456789abcdef
        .reloc ., R_RISCV_ADD8, front + 3; .byte 5; .reloc ., R_RISCV_SUB8, back; .byte 200
        .reloc ., R_RISCV_ADD16, remote; .half 0xfff0; .reloc ., R_RISCV_SUB16, remote; .half 3
        .reloc ., R_RISCV_ADD32, remote; .long -1; .reloc ., R_RISCV_SUB32, datum; .long 3
        .reloc ., R_RISCV_ADD64, remote; .quad -1; .reloc ., R_RISCV_SUB64, datum; .quad 3
        .reloc ., R_RISCV_SET6, front + 9; .byte 0xc5; .reloc ., R_RISCV_SUB6, front; .byte 0x83
        .reloc ., R_RISCV_SET8, front + 5; .byte 9; .reloc ., R_RISCV_SET16, back + 0x7654; .half 9
        .reloc ., R_RISCV_SET32, datum + 0x72345678; .long 9
        .reloc ., R_RISCV_SET16, back + 5; .reloc ., R_RISCV_ADD16, front; .half 9
        .reloc ., R_RISCV_SET32, datum; .reloc ., R_RISCV_ADD32, front + 7; .long 9
        .reloc ., R_RISCV_ADD32, datum + 0x12345678; .long 9
        .reloc ., R_RISCV_SUB32, front; .long 0x72345678
        .reloc ., R_RISCV_ADD64, datum + 0x7123456789abcdef; .quad 9
        .reloc ., R_RISCV_SUB64, datum; .quad 0x7123456789abcdef
        """,
}


def made(folder: Path, isa: str) -> Path:
    """Make a relocatable file with one of each relocation."""
    syntax = ".intel_syntax noprefix\n" if isa == "amd64" else ""
    spaces = ".space 300\n" if isa == "riscv64" else ""
    source = f"""{syntax}
        .text
    back: nop; nop
    here: {CODE[isa]}
        {spaces}
    front: {CODE[isa]}
    there: nop
        .section .init.text,"ax",%progbits
        .space 20
    remote: nop; {CODE[isa].replace("je front;", "").replace("b.eq front;", "")}
        .data
        .space 8
    datum: .quad 1
        .long remote - .
        .bss
        .space 24
        .section .debug_made,"",%progbits
        {NUMBERS[isa]}
    """.replace("beqz a0, front; nop\n        .data", "nop\n        .data")
    (folder / "made.s").write_text(source)
    out = folder / "made.o"
    march = ["-march=rv64gc"] if isa == "riscv64" else []
    run(f"{TOOLS[isa]}as", *march, "-o", str(out), str(folder / "made.s"))
    return out


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def both(folder: Path, isa: str, name: str) -> tuple[Elf, Elf]:
    """Return a relocatable file, and the same file linked."""
    if name == "made":
        path = made(folder, isa)
    else:
        path = folder / "copies.o"
        flags = ("-O2", "-gdwarf-5", "-ffunction-sections", "-fno-pic", "-fcf-protection=none")
        flags = flags if isa == "amd64" else flags[:-1]
        run(CROSS[isa], *flags, "-c", "-o", str(path), str(C / name))
    # Otherwise a linker would merge equal strings.
    strings = [f"{s}=readonly,debug" for s in (".debug_str", ".debug_line_str")]
    run(f"{TOOLS[isa]}objcopy", *(f"--set-section-flags={s}" for s in strings), str(path))
    elf = open_elf(path)
    rows = [
        f'  "{elf.sections[index].name}" {at:#x} : {{ "{path}" ("{elf.sections[index].name}") }}'
        for index, at in sorted(elf.layout.items(), key=lambda row: row[1])
        if elf.sections[index].size
    ]
    rows += [
        f"  {s.name} 0 : {{ *({s.name}) }}" for s in elf.sections if s.name.startswith(".debug")
    ]
    script, out = folder / "script.ld", folder / f"{name}.linked"
    script.write_text("\n".join(["SECTIONS {", *rows, "}"]))
    run(f"{TOOLS[isa]}ld", "--no-relax", "--unresolved-symbols=ignore-all", "-e", "0",
        "--no-check-sections", "-T", str(script), "-o", str(out), str(path))  # fmt: skip
    return elf, open_elf(out)


@pytest.fixture(scope="module", params=[(i, s) for i in sorted(TOOLS) for s in SOURCES], ids=str)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Elf, Elf]:
    return both(tmp_path_factory.mktemp("placed"), *request.param)


def test_sections_do_not_touch(pair: tuple[Elf, Elf]) -> None:
    elf, linked = pair
    rows = sorted((at, elf.sections[index]) for index, at in elf.layout.items())
    assert rows[0][1].name == ".text" and rows[0][0] == 0
    ends = [at + section.size for at, section in rows]
    assert all(low > end for end, (low, _) in zip(ends, rows[1:], strict=False))
    assert not linked.layout and placed(linked) is linked
    assert linked.place(0) is None
    for at, section in rows:
        if section.size:
            assert elf.place(at) == (section.name, 0)
            assert elf.place(at + section.size - 1) == (section.name, section.size - 1)
            assert elf.place(at + section.size) is None


def test_debug_sections_are_what_the_linker_makes(pair: tuple[Elf, Elf]) -> None:
    elf, linked = pair
    compared = 0
    for section in elf.sections:
        if not section.name.startswith(".debug"):
            continue
        raw = np.frombuffer(elf.data(section), np.uint8)
        other = linked.section(section.name)
        assert other is not None
        found = relocated(elf, section, raw).tobytes()
        assert found == linked.data(other), section.name
        compared += found != raw.tobytes()
        same = np.frombuffer(linked.data(other), np.uint8)
        assert relocated(linked, other, same) is same
    assert compared


def test_symbols_are_where_the_linker_puts_them(pair: tuple[Elf, Elf]) -> None:
    elf, linked = pair
    moved = placed(elf)
    assert isinstance(moved, PlacedElf)
    tool = next(t for i, t in TOOLS.items() if linked.machine == MACHINES[i])
    expected = {}
    for line in run(f"{tool}nm", str(linked.path)).splitlines():
        address, _, name = line.split()[-3:]
        expected[name] = int(address, 16)
    symbols = moved.symbols
    assert len(symbols) == len(elf.symbols)
    known = {name: int(symbols.address[k]) for k in range(len(symbols))
             if (name := symbols.name_of(k)) in expected}  # fmt: skip
    assert len(known) > 4
    assert known == {name: expected[name] for name in known}
    assert moved.placed_addresses.tolist() == elf.placed_addresses.tolist()


MACHINES = {"amd64": 62, "arm64": 183, "riscv64": 243}
RESOLVED = {"R_X86_64_PC32", "R_X86_64_PLT32", "R_AARCH64_CALL26", "R_AARCH64_JUMP26"}


def relocations(elf: Elf, section: str) -> dict[int, str]:
    """Return types by offset, as readelf shows them; a relocation to a missing symbol has none."""
    tool = next(t for i, t in TOOLS.items() if elf.machine == MACHINES[i])
    missing = {line.split()[-1] for line in run(f"{tool}nm", "-u", str(elf.path)).splitlines()}
    found, inside = {}, False
    for line in run("readelf", "-rW", str(elf.path)).splitlines():
        if line.startswith("Relocation section"):
            inside = line.split("'")[1] == f".rela{section}"
        words = line.split()
        if inside and len(words) > 4 and words[2].startswith("R_"):
            found[int(words[0], 16)] = "" if words[4] in missing else words[2]
    return found


def test_branches_lead_where_the_linkers_do(pair: tuple[Elf, Elf]) -> None:
    elf, linked = pair
    moved, resolved = placed(elf), 0
    if elf.machine == MACHINES["riscv64"]:
        at = next(at for k, at in elf.layout.items() if relocations(elf, elf.sections[k].name))
        with pytest.raises(KinstError, match=r"ELF machine 243 are not known.*link the file"):
            moved.read(at, 4)
        return
    for index, at in elf.layout.items():
        section = elf.sections[index]
        if not section.size:
            continue
        if section.name not in (".text", ".init.text") and not section.name.startswith(".text."):
            continue
        code, final = moved.read(at, section.size), linked.read(at, section.size)
        raw, known = elf.data(section), relocations(elf, section.name)
        touched = {k for offset in known for k in range(offset, offset + 4)}
        for k in set(range(section.size)) - touched:
            assert code[k] == raw[k] == final[k]
        for offset, kind in known.items():
            there = slice(offset, offset + 4)
            if kind in RESOLVED:
                assert code[there] == final[there], f"{section.name}+{offset:#x}: {kind}"
                resolved += code[there] != raw[there]
                assert moved.read(at + offset, 4) == code[there]
            elif not kind:
                assert code[there] == raw[there]
    assert resolved > 3


def test_data_is_read_as_it_is(pair: tuple[Elf, Elf]) -> None:
    """Even where a linker would fill it in, with a relocation type that branches have as well; the
    file has no bytes of .bss, which is zeros."""
    elf, _ = pair
    moved = placed(elf)
    for index, at in elf.layout.items():
        section = elf.sections[index]
        if section.name in (".data", ".bss") and section.size:
            assert moved.read(at, section.size) == (elf.data(section) or bytes(section.size))


def test_damaged_relocations_are_told(pair: tuple[Elf, Elf]) -> None:
    """A row names a missing symbol, has an unknown type, or leads out of the section."""
    elf, _ = pair
    name = next(s.name for s in elf.sections if s.name == ".rela.debug_made" or
                s.name == ".rela.debug_info")  # fmt: skip
    table = elf.section(name)
    section = elf.section(name.removeprefix(".rela"))
    assert table is not None and section is not None
    whole = elf.path.read_bytes()
    raw = np.frombuffer(elf.data(section), np.uint8)
    damages = (
        (12, len(elf.symbols), "symbols that do not exist"), (8, 999, "type 999 is not known"),
        (0, section.size, "lie outside of the section"),
    )  # fmt: skip
    for field, value, said in damages:
        at = table.offset + field
        damaged = elf.path.parent / "damaged.o"
        damaged.write_bytes(whole[:at] + value.to_bytes(4, "little") + whole[at + 4 :])
        other = open_elf(damaged)
        with pytest.raises(KinstError, match=said):
            relocated(other, section, raw)
    # The last place where a field fits, and the type that means to do nothing.
    kind = int.from_bytes(whole[table.offset + 8 :][:4], "little")
    at = table.offset + 8
    damaged.write_bytes(whole[:at] + bytes(4) + whole[at + 4 :])
    nothing = relocated(open_elf(damaged), section, raw)
    normal = relocated(elf, section, raw)
    offset = int.from_bytes(whole[table.offset :][:8], "little")
    differs = np.flatnonzero(nothing != normal)
    assert kind and all(offset <= k < offset + 8 for k in differs.tolist())


@pytest.mark.parametrize("isa", ["amd64", "arm64"])
def test_branches_that_lead_out_of_their_section_are_left(isa: str, tmp_path: Path) -> None:
    """The last four bytes of a section can be a branch; fewer cannot."""
    code = {"amd64": ".byte 0xe8; .long remote - . - 4", "arm64": "bl remote"}[isa]
    (tmp_path / "a.s").write_text(f'.text\nnop; nop\n{code}\n.section .other,"ax"\nremote: nop\n')
    path = tmp_path / "a.o"
    run(f"{TOOLS[isa]}as", "-o", str(path), str(tmp_path / "a.s"))
    elf, whole = open_elf(path), path.read_bytes()
    text, table = elf.section(".text"), elf.section(".rela.text")
    assert text is not None and table is not None and table.size == 24
    raw = elf.data(text)
    resolved = placed(elf).read(0, text.size)
    assert resolved[:-4] == raw[:-4] and resolved[-4:] != raw[-4:]
    for offset in (text.size - 3, text.size - 1, text.size, text.size + 1, 1 << 40):
        start = table.offset
        path.write_bytes(whole[:start] + offset.to_bytes(8, "little") + whole[start + 8 :])
        assert placed(open_elf(path)).read(0, text.size) == raw


def leb(number: int, size: int) -> bytes:
    """Return a ULEB128 number in so many bytes, even if it needs fewer."""
    digits = [number >> 7 * k & 0x7F for k in range(size)]
    return bytes([d | 0x80 for d in digits[:-1]] + digits[-1:])


def test_uleb128_numbers_keep_their_length(tmp_path: Path) -> None:
    """R_RISCV_SET_ULEB128 (60) and SUB_ULEB128 (61), which not all assemblers know: the test
    changes the types."""
    rng = random.Random(4)
    sizes = [rng.randrange(1, 5) for _ in range(30)] + [3]
    values = [rng.randrange(1 << 7 * size) for size in sizes]
    less = [rng.randrange(value + 1) for value in values]
    lines = [".section .debug_made", ".byte 0xff, 0xff"]
    for value, minus, size in zip(values, less, sizes, strict=True):
        lines += [f".reloc ., R_RISCV_SET8, {value}", f".reloc ., R_RISCV_SUB8, {minus}"]
        lines += [f".byte {', '.join(str(0x80 * (k < size - 1) + 5) for k in range(size))}"]
    (tmp_path / "a.s").write_text("\n".join(lines) + "\n")
    path = tmp_path / "a.o"
    run("riscv64-linux-gnu-as", "-o", str(path), str(tmp_path / "a.s"))
    data, elf = bytearray(path.read_bytes()), open_elf(path)
    table, section = elf.section(".rela.debug_made"), elf.section(".debug_made")
    assert table is not None and section is not None
    assert table.size == 24 * 2 * len(sizes)
    for at in range(table.offset, table.offset + table.size, 24):
        data[at + 8] = {54: 60, 37: 61}[data[at + 8]]
    path.write_bytes(data)
    found = relocated(open_elf(path), section, np.frombuffer(elf.data(section), np.uint8))
    rows = zip(values, less, sizes, strict=True)
    expected = b"\xff\xff" + b"".join(leb(v - minus, size) for v, minus, size in rows)
    assert found.tobytes() == expected
