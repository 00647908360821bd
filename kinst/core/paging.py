"""What every ISA answers of its page tables (core/page_tables.py walks them).

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from kinst.core.page_tables import Leaf, Read, Root


class Paging(Protocol):
    """Page tables of one ISA: found by registers, walked and extended through physical memory.

    read: read_physical(address, size) -> bytes.  Registers are by the stub's names.  image: the
    range [low, high) of virtual addresses in which a system maps its kernel (Territory.image).
    """

    REACH: int  # of a direct branch, with a margin; bytes

    def root_of(self, registers: Mapping[str, int]) -> Root:
        """The top-level table of the kernel's half as this CPU has it.  Raises TargetError where
        the CPU does not translate addresses, or its tables are of a kind that kinst cannot
        read."""
        ...

    def roots_of(self, registers: Mapping[str, int]) -> tuple[Root, ...]:
        """The same, and behind it another that may be the kernel's where the CPU can stand in the
        kernel with the tables of user mode: the one by which more of the kernel is mapped is.
        Raises TargetError as root_of() does."""
        ...

    def in_user_mode(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU stands in user mode."""
        ...

    def walk(self, read: Read, root: Root, address: int) -> Leaf | None:
        """The mapping of one virtual address, with the rights of all levels, or None."""
        ...

    def leaves(self, read: Read, root: Root, low: int, high: int) -> Iterator[Leaf]:
        """Mappings that touch [low, high), in address order."""
        ...

    def free_slots(self, read: Read, root: Root, low: int, high: int) -> list[int]:
        """Virtual addresses in [low, high) where make_leaf() can map LEAF_SIZE bytes."""
        ...

    def slot_free(self, read: Read, root: Root, address: int) -> bool:
        """Whether make_leaf() could map the LEAF_SIZE bytes at address."""
        ...

    def make_leaf(
        self, read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
    ) -> list[tuple[int, bytes]] | None:
        """(physical address, bytes) to write, in order, so that address is mapped by `entry`;
        None where it cannot be."""
        ...

    def leaf_entry(self, physical: int, like: Leaf) -> int:
        """An entry that maps LEAF_SIZE bytes at physical, writable and executable for the kernel,
        otherwise as the mapping `like`.  Raises TargetError where that would not run."""
        ...

    def find_text(self, read: Read, root: Root, image: tuple[int, int]) -> int:
        """Where the kernel's text starts, by what is executable in its image's range.  Raises
        TargetError when nothing is: the kernel is not up yet."""
        ...

    def text_is_final(
        self, read: Read, registers: Mapping[str, int], image: tuple[int, int]
    ) -> bool:
        """Whether the tables show that the kernel has protected its text, or given up the code
        that only boots: the last thing before it runs programs."""
        ...
