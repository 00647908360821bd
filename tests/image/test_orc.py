"""kinst/image/orc.py against the call frame information that the compiler wrote (readelf)."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.image.elf import Elf, open_elf
from kinst.image.elf_file import ElfSection
from kinst.image.orc import Orc, OrcRule, open_orc
from kinst.kernels.fetch import Prepared
from tests.tiers import draws

NAMES = {"rsp": "R_RSP", "rbp": "R_RBP", "r10": "R_R10"}


@pytest.fixture(scope="module")
def elf(prepared: Prepared) -> Elf:
    return open_elf(prepared.debug)


@pytest.fixture(scope="module")
def orc(elf: Elf) -> Orc:
    found = open_orc(elf)
    assert found is not None and len(found) > 100_000
    return found


@pytest.mark.drawn
def test_rules_are_those_of_debug_frame(elf: Elf, orc: Orc) -> None:
    """Rows of .debug_frame with a plain CFA: over 300,000 places, of which make test takes each
    tenth."""
    shown = subprocess.run(["readelf", "-wF", str(elf.path)], capture_output=True, text=True,
                           check=True, timeout=300).stdout  # fmt: skip
    rows = re.findall(r"^([0-9a-f]{16}) (rsp|rbp|r10)\+(\d+) .*?c-8 *$", shown, re.M)
    section = elf.section(".text")
    assert section is not None and len(rows) > 300_000
    same = other = unknown = 0
    for address, register, offset in rows[:: draws(10, 1)]:
        at = int(address, 16)
        if not section.address <= at < section.end:
            continue
        rule = orc.rule(at)
        if rule is None:
            unknown += 1
        elif (rule.register, rule.offset, rule.return_address) == (
            NAMES[register], int(offset), -8,
        ):  # fmt: skip
            same += 1
        else:
            other += 1
    # objtool and the compiler describe the few stack switches and dead code differently.
    assert other < same / 1000 and unknown < same / 200, (same, other, unknown)


def test_where_there_is_no_caller(elf: Elf, orc: Orc) -> None:
    for name in ("asm_exc_int3", "entry_SYSCALL_64", "ret_from_fork"):
        address = elf.address(name)
        assert address is not None and orc.rule(address) is None, name
    assert orc.rule(0) is None


def test_file_without_tables(tmp_path: Path) -> None:
    source = tmp_path / "x.c"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-o", str(tmp_path / "x"), str(source)], check=True)
    assert open_orc(open_elf(tmp_path / "x")) is None


class Made:
    """Two hand-made tables, out of order, at linked address 0x1000."""

    path = Path("made")

    def __init__(self, rows: list[tuple[int, int, int]], header: bool) -> None:
        self.places = b"".join(
            struct.pack("<i", address - (0x1000 + 4 * i)) for i, (address, _, _) in enumerate(rows)
        )
        self.rules = b"".join(struct.pack("<hhH", offset, 0, word) for _, offset, word in rows)
        self.header = header

    def section(self, name: str) -> ElfSection | None:
        data = {".orc_unwind_ip": self.places, ".orc_unwind": self.rules}.get(name)
        if name == ".orc_header" and self.header:
            data = bytes(20)
        return None if data is None else ElfSection(name, 1, 0, 2, 0x1000, 0, len(data), 0, 0, 1)

    def data(self, section: ElfSection) -> bytes:
        return self.places if section.name == ".orc_unwind_ip" else self.rules


@pytest.mark.parametrize(
    ("header", "word", "plain"),
    [
        (False, 5, True), (False, 5 | 1 << 8, False), (False, 5 | 2 << 8, False),
        (False, 5 | 1 << 10, False), (True, 5 | 2 << 8, True), (True, 5, False),
        (True, 5 | 1 << 8, False), (True, 5 | 3 << 8, False), (True, 5 | 2 << 8 | 1 << 11, True),
        (False, 9, False), (False, 0, False),
    ],
)  # fmt: skip
def test_both_layouts(header: bool, word: int, plain: bool) -> None:
    rows = [(0x5020, 16, 5 if not header else 5 | 2 << 8), (0x5000, 8, word)]
    made = open_orc(Made(rows, header))  # type: ignore[arg-type]
    assert made is not None
    expected = OrcRule("R_RSP", 8, -8) if plain else None
    assert made.rule(0x5000) == made.rule(0x501F) == expected
    assert made.rule(0x5020) == OrcRule("R_RSP", 16, -8)
    assert made.rule(0x4FFF) is None


# ORC_REG_*: arch/x86/include/asm/orc_types.h; the later ones as unwind_next_frame() of Debian's 7.3
# takes them from pt_regs, which "objdump -d" shows: 0x10 r13, 0x38 r10, 0x60 dx, 0x70 di.
@pytest.mark.parametrize(
    ("numbers", "previous"),
    [
        ({2: "R_RDX", 3: "R_RDI", 4: "R_RBP", 5: "R_RSP", 6: "R_R10", 7: "R_R13"}, 1),
        ({2: "R_RDX", 3: "R_RSP", 4: "R_RBP", 5: "R_RDI", 6: "R_R10", 7: "R_R13"}, 8),
    ],
)
def test_registers(numbers: dict[int, str], previous: int) -> None:
    (stack_pointer,) = (number for number, name in numbers.items() if name == "R_RSP")
    most = [(0x6000 + k, 8, stack_pointer) for k in range(3)]
    for number in range(16):
        made = open_orc(Made([(0x5000, -24, number | number << 4), *most], False))  # type: ignore[arg-type]
        assert made is not None
        rule = made.rule(0x5000)
        assert (rule.register if rule else None) == numbers.get(number)
        assert rule is None or rule.offset == -24
        assert (made.saved_frame_pointer(0x5000) is not None) == (number == previous)


def test_registers_of_no_known_numbers() -> None:
    with pytest.raises(KinstError, match=r"made: \.orc_unwind numbers registers"):
        open_orc(Made([(0x5000 + k, 8, 6) for k in range(3)], False))  # type: ignore[arg-type]


def test_tables_that_do_not_belong_together() -> None:
    """With as many rules as places, each rule has 6 bytes."""
    for more in (b"\0", bytes(6)):
        made = Made([(0x5000, 8, 5), (0x5020, 16, 5)], False)
        made.rules += more
        said = rf"made: \.orc_unwind has {12 + len(more)} bytes for 2 addresses"
        with pytest.raises(KinstError, match=said):
            open_orc(made)  # type: ignore[arg-type]
