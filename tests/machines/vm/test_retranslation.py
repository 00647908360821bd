"""Code that QEMU is made to translate again, by page tables that are laid out by hand."""

from __future__ import annotations

from kinst.core.errors import TargetError
from kinst.core.words import PAGE
from kinst.isa import load
from kinst.isa.amd64.paging import PAGING
from kinst.machines.vm.retranslation import all_code, code_at_hand
from kinst.systems.linux.amd64 import LINUX
from tests.isa.amd64.test_paging import NX, PS, TEXT, P, Ram

ISA = load("amd64")
STACK = 0xFFFF_C900_0000_0000
USER = 0x400000


class Memory:
    """The part of QEMU's memory that retranslation.py reads."""

    def __init__(self, ram: Ram) -> None:
        self.read_physical = ram.read
        self.ram = ram

    def write_physical(self, address: int, data: bytes) -> None:
        self.ram.data[address : address + len(data)] = data


def world() -> tuple[Memory, dict[str, int]]:
    """Return 4 KB pages of text, the third of them data, in reversed order; and a stack of one
    page."""
    ram = Ram()
    for k, flags in enumerate((P, P, P | NX, P)):
        ram.map(TEXT + k * PAGE, 0x300000 - k * PAGE | flags, PAGE)
    ram.map(STACK, 0x280000 | P | NX, PAGE)
    ram.map(USER, 0x281000 | P | 4, PAGE)
    for at, word in ((0, TEXT + PAGE + 5), (8, TEXT + 2 * PAGE), (16, USER + 8), (24, 0x1234)):
        ram.put(0x280F00 + at, word)
    ram.put(0x280EF8, TEXT + 3 * PAGE)  # below the stack pointer: a former return address
    registers = {"cr3": ram.root, "cr4": 0, "cs": 0x10, "rsp": STACK + 0xF00, "rip": TEXT + 0xFFF}
    return Memory(ram), registers


def test_code_at_hand_is_where_the_cpu_is_and_returns_to() -> None:
    memory, registers = world()
    found = code_at_hand(ISA, memory, registers)
    assert found == {0x300000, 0x300000 - PAGE}


def test_code_at_hand_without_a_stack_that_can_be_read() -> None:
    memory, registers = world()
    registers |= {"rsp": STACK + PAGE, "rip": TEXT + 3 * PAGE}
    assert code_at_hand(ISA, memory, registers) == {0x300000 - 3 * PAGE}
    registers["rip"] = USER
    assert code_at_hand(ISA, memory, registers) == set()


def test_all_code_is_every_executable_page_of_the_image() -> None:
    memory, registers = world()
    memory.ram.map(TEXT + (2 << 20), 0x200000 | P | PS, 2 << 20)
    wanted = {0x300000 - k * PAGE for k in (0, 1, 3)} | set(range(0x200000, 0x400000, PAGE))
    assert all_code(PAGING, LINUX.virtual_layout.image, memory, registers) == wanted
    assert (
        all_code(PAGING, LINUX.virtual_layout.image, memory, registers | {"cr3": memory.ram.page()})
        == set()
    )


def test_pages_that_are_not_there_are_left_out() -> None:
    """Page tables of a CPU that is not in the kernel yet lead beyond the guest's RAM."""
    memory, registers = world()
    memory.ram.map(TEXT + 4 * PAGE, 0x5379_7000 | P, PAGE)

    def read(address: int, size: int) -> bytes:
        if address + size > len(memory.ram.data):
            raise TargetError(f"physical address {address:#x} is not in the guest's memory")
        return memory.ram.read(address, size)

    memory.read_physical = read
    registers["rip"] = TEXT + 4 * PAGE
    assert code_at_hand(ISA, memory, registers) == {0x300000 - PAGE}
    found = all_code(PAGING, LINUX.virtual_layout.image, memory, registers)
    assert found == {0x300000 - k * PAGE for k in (0, 1, 3)}
