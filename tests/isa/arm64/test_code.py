"""Three facts about arm64, each compared with an authority other than kinst.

They are D conditions of branches, LLVM's preserve-most convention, and the kernel's page-table
root.
"""

from __future__ import annotations

import dataclasses
import random
import re

import llvmlite.binding as llvm
import pytest

from kinst.codegen.llvm_calls import read_object
from kinst.core.errors import TargetError
from kinst.core.page_tables import Leaf, Root
from kinst.isa import load
from kinst.isa.arm64 import board
from kinst.isa.arm64.paging import PAGING
from kinst.systems.linux.arm64 import LINUX
from tests.isa.emulated_arm64 import NAMES, SCRATCH, Machine, random_state

IMAGE = LINUX.virtual_layout.image

ISA = load("arm64")
TEXT = 0xFFFF_8000_0801_0000
INDEX = {r.d_name: r.index for r in ISA.registers}
WORDS = [0x54000100 | condition for condition in range(14)]  # b.cond
WORDS += [0x34000105, 0xB4000105, 0x35000105, 0xB5000105, 0xB400011F]  # cbz, cbnz; cbz xzr
WORDS += [0x36180105, 0xB6F80105, 0x37F80105, 0xB7000105]  # tbz, tbnz


def value(condition: str, regs: dict[int, int]) -> bool:
    """Return the D expression's value, computed by Python."""
    text = re.sub(r"regs\[(R_\w+)\]", lambda m: str(regs[INDEX[m.group(1)]]), condition)
    return bool(eval(text.replace("&&", " and ").replace("||", " or ")))


@pytest.mark.parametrize("word", WORDS)
def test_conditions_say_what_the_processor_does(word: int) -> None:
    code = word.to_bytes(4, "little")
    machine = Machine(TEXT, code + bytes(60))
    flow = ISA.flow(code, TEXT)
    assert flow.kind == "branch" and flow.target == TEXT + 32
    rng = random.Random(word)
    for _ in range(32):
        state = random_state(rng)
        regs = {n: state.registers[name] for n, name in enumerate(NAMES)}
        regs[INDEX["R_PSTATE"]] = state.registers["pstate"]
        taken = machine.run(state, TEXT, (TEXT, TEXT + 4)).registers["pc"] == flow.target
        assert value(flow.condition, regs) == taken
        assert value(flow.otherwise, regs) == (not taken)


IR = """
target triple = "aarch64-unknown-none"
define preserve_mostcc void @entry(i64 %a, i64 %b) {
  %x = mul i64 %a, %b
  %r = call i64 inttoptr (i64 CALLEE to ptr)(i64 %a, i64 %b, i64 %x)
  %p = inttoptr i64 %b to ptr
  %s = add i64 %r, %x
  store i64 %s, ptr %p
  ret void
}
"""


def test_what_llvms_convention_keeps() -> None:
    """The trampoline saves x0 to x8, x16, x17 and x30.

    Code in this convention keeps all other registers, even if it calls C functions, which may
    change x0 to x17.
    """
    callee = SCRATCH + 0x1000
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(IR.replace("CALLEE", str(callee)))
    target = llvm.Target.from_triple(ISA.triple).create_target_machine(
        features=ISA.cpu_features, opt=2, reloc="static", codemodel="small"
    )
    module.get_function("entry").add_function_attribute("nounwind")
    found = read_object(target.emit_object(module))
    machine = Machine(TEXT, bytes(64))
    machine.write_code(SCRATCH, found.code)
    spoil = [0x92800000 | n for n in range(18)] + [0xD65F03C0]  # movn xN, #0; ret
    machine.write_code(callee, b"".join(word.to_bytes(4, "little") for word in spoil))
    state = random_state(random.Random(5), tame=True)
    state.registers["x1"] = 0xFFFF_0000_0010_0000  # type: ignore[index]
    state.registers["x30"] = TEXT + 0x1000  # type: ignore[index]
    ranges = (SCRATCH, SCRATCH + len(found.code)), (callee, callee + 4096)
    after = machine.run(state, SCRATCH, *ranges).registers
    assert after["pc"] == TEXT + 0x1000 and after["sp"] == state.registers["sp"]
    for number in (*range(9, 16), *range(18, 30)):
        assert after[f"x{number}"] == state.registers[f"x{number}"], number


SWAPPER = 0x4158_F000
CONTROL = 16 << 16 | 16 | 2 << 30  # TCR_EL1: 48-bit addresses, 4 KB granule


@pytest.mark.parametrize(
    ("root", "vectors", "state"),
    [
        (SWAPPER | 0x2 << 48, 0xFFFF_A45D_2D81_0800, 5),  # in the kernel
        (SWAPPER | 0x3 << 48, 0xFFFF_A45D_2D81_0800, 0),  # in user mode, the kernel mapped
        (SWAPPER - 0x2000 | 0x3 << 48, 0xFFFF_FBFF_FDBF_7800, 0),  # unmapped
        (SWAPPER - 0x2000 | 0x3B << 48, 0xFFFF_FBFF_FDBF_7800, 5),  # about to return there
        (SWAPPER | 0x3A << 48, 0xFFFF_FBFF_FDBF_7800, 5),  # a little earlier
    ],
)
def test_the_kernels_root(root: int, vectors: int, state: int) -> None:
    """Registers are values that QEMU's stub returned for a running guest."""
    registers = {"TTBR1_EL1": root, "TCR_EL1": CONTROL, "VBAR": vectors, "cpsr": state}
    assert PAGING.root_of(registers) == Root(SWAPPER, 4, 12, 48)
    assert PAGING.in_user_mode(registers) == (state == 0)


def test_a_leaf_is_mapped_and_found() -> None:
    """Tables made by hand: bits 47:39, 38:30, 29:21 of the address; D8.3 of the manual."""
    memory = bytearray(1 << 16)
    near = 0xFFFF_8000_0800_0000
    new = near - (2 << 20)

    def put(at: int, word: int) -> None:
        memory[at : at + 8] = word.to_bytes(8, "little")

    put(0x1000 + 8 * 256, 0x2003)
    put(0x2000, 0x3003)
    put(0x3000 + 8 * 64, 0x4020_0000 | 0x40000000000781)  # read-only text

    def read(at: int, size: int) -> bytes:
        return bytes(memory[at : at + size])

    root = Root(0x1000, 4)
    text = PAGING.walk(read, root, near + 0x1234)
    assert text is not None and text.executable and not text.writable and not text.user
    assert PAGING.find_text(read, root, IMAGE) == near
    assert PAGING.slot_free(read, root, new) and not PAGING.slot_free(read, root, near)
    assert new in PAGING.free_slots(read, root, near - (64 << 20), near + (64 << 20))
    entry = PAGING.leaf_entry(0x8000_0000, text)
    for at, data in PAGING.make_leaf(read, root, new, entry, lambda: 0) or []:
        memory[at : at + len(data)] = data
    leaf = PAGING.walk(read, root, new + 0x4567)
    assert leaf is not None and leaf.writable and leaf.executable and not leaf.user
    assert leaf.physical == 0x8000_0000 and leaf.size == 2 << 20
    assert not leaf.entry & 1 << 50  # no bti is needed to enter trampolines


def test_a_kernel_at_el2_is_refused() -> None:
    """The EL1 registers are not the kernel's if HCR_EL2.E2H (bit 34) is set."""
    registers = {"TCR_EL1": 16 << 16 | 2 << 30, "TTBR1_EL1": SWAPPER, "HCR_EL2": 1 << 34}
    with pytest.raises(TargetError, match="EL2"):
        PAGING.root_of(registers)
    assert PAGING.root_of({**registers, "HCR_EL2": 1 << 31}).physical == SWAPPER


def test_guarded_code_is_refused() -> None:
    """GP is bit 50 of the entry that maps the kernel's text (DDI 0487, D8.3)."""
    text = Leaf(0xFFFF_8000_0800_0000, 0x4000_0000, 2 << 20, 0x783, False, True, False)
    assert PAGING.leaf_entry(0x8000_0000, text)
    with pytest.raises(TargetError, match="nobti"):
        PAGING.leaf_entry(0x8000_0000, dataclasses.replace(text, entry=text.entry | 1 << 50))


@pytest.mark.parametrize(
    ("granule", "page_bits", "offsets"),
    [  # bits of an address below each index, from the top: DDI 0487, D8.2 (48-bit addresses)
        (2, 12, (39, 30, 21, 12)),
        (1, 14, (47, 36, 25, 14)),
        (3, 16, (42, 29, 16)),
    ],
)
def test_pages_of_every_size(granule: int, page_bits: int, offsets: tuple[int, ...]) -> None:
    """Tables made by hand map a page of text; 2 MB are mapped beside it and found again."""
    registers = {"TTBR1_EL1": 1 << 20, "TCR_EL1": 16 << 16 | granule << 30}
    root = PAGING.root_of(registers)
    assert (root.levels, root.page_bits, root.bits) == (len(offsets), page_bits, 48)
    page, near = 1 << page_bits, 0xFFFF_8000_0820_0000
    memory = bytearray(4 << 20)
    tables = iter(range(2 << 20, 4 << 20, page))

    def put(at: int, word: int) -> None:
        memory[at : at + 8] = word.to_bytes(8, "little")

    table, top = 1 << 20, 48
    for offset in offsets:
        at = table + 8 * (near >> offset & (1 << top - offset) - 1)
        table, top = next(tables), offset
        put(at, table | 3 if offset != offsets[-1] else 1 << 30 | 0x40_0000_0000_0783)

    def read(at: int, size: int) -> bytes:
        return bytes(memory[at : at + size])

    text = PAGING.walk(read, root, near + 0x123)
    assert text is not None and (text.address, text.size) == (near, page)
    assert text.physical == 1 << 30 and text.executable and not text.writable
    assert list(PAGING.leaves(read, root, near - (1 << 30), near + (1 << 30))) == [text]
    assert not PAGING.slot_free(read, root, near)
    # In an existing table, and where a table must be made.
    free = PAGING.free_slots(read, root, near, near + (2 << 30))
    for new in (near + (2 << 20), near + (1 << 30)):
        assert new in free and PAGING.slot_free(read, root, new)
        entry = PAGING.leaf_entry(3 << 30, text)
        for at, data in PAGING.make_leaf(read, root, new, entry, lambda: next(tables)) or []:
            memory[at : at + len(data)] = data
        assert not PAGING.slot_free(read, root, new)
        for offset in (0, 0x1F_FFFF, 0x12_3456):
            leaf = PAGING.walk(read, root, new + offset)
            assert leaf is not None and leaf.writable and leaf.executable and not leaf.user
            assert leaf.physical + new + offset - leaf.address == (3 << 30) + offset
        assert PAGING.walk(read, root, new + (2 << 20)) is None
    assert PAGING.walk(read, root, near) == text


def test_wide_page_table_entries_are_refused() -> None:
    """Entries have bits 51 and 50 of the address elsewhere if TCR_EL1.DS (bit 59) is set."""
    registers = {"TTBR1_EL1": SWAPPER, "TCR_EL1": 16 << 16 | 1 << 30 | 1 << 59}
    with pytest.raises(TargetError, match="LPA2"):
        PAGING.root_of(registers)


@pytest.mark.parametrize(
    ("flags", "cpu"), [(2, "cortex-a57"), (4, "neoverse-n1"), (6, "cortex-a57")]
)
def test_a_cpu_that_has_the_kernels_pages(flags: int, cpu: str) -> None:
    """Documentation/arch/arm64/booting.rst: bits 1 and 2 are 1 for 4 KB, 2 for 16, 3 for 64."""
    head = bytes(24) + (flags | 8).to_bytes(8, "little") + bytes(24) + b"ARM\x64" + bytes(4)
    assert board.cpu_for(head) == cpu
    assert board.cpu_for(b"\x1f\x8b" + bytes(62)) == board.CPU
