"""kinst/systems/linux/tables.py: each table's entries match the kernel's code.

Expected values come from nm and a disassembler, not from the tables.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import capstone
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst.core.errors import KinstError
from kinst.image.elf import Elf, open_elf
from kinst.kernels.fetch import Prepared
from kinst.systems.linux.tables import KernelTables, Spans, spans


@pytest.fixture(scope="module")
def elf(prepared: Prepared) -> Elf:
    return open_elf(prepared.debug)


@pytest.fixture(scope="module")
def tables(elf: Elf) -> KernelTables:
    return KernelTables(elf)


@pytest.fixture(scope="module")
def nm(prepared: Prepared) -> dict[str, int]:
    shown = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True, check=True)
    rows = (line.split() for line in shown.stdout.splitlines())
    return {words[2]: int(words[0], 16) for words in rows if len(words) == 3}


def code_at(elf: Elf, address: int) -> bytes:
    for section in elf.sections:
        if section.flags & 4 and section.address <= address < section.end:
            return elf.read(address, min(16, section.end - address))
    raise AssertionError(f"{address:#x} is not code")


def decoded(elf: Elf, addresses: Iterator[int]) -> Iterator[tuple[int, int, str, str]]:
    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    for address in addresses:
        yield next(machine.disasm_lite(code_at(elf, address), address, 1))


def length(nm: dict[str, int], start: str, stop: str, entry: int) -> int:
    assert (nm[stop] - nm[start]) % entry == 0
    return (nm[stop] - nm[start]) // entry


def test_jump_labels_are_nops_or_jumps(elf: Elf, tables: KernelTables, nm: dict[str, int]) -> None:
    labels = tables.jump_labels
    assert len(labels) == length(nm, "__start___jump_table", "__stop___jump_table", 16) > 5000
    for (_, size, mnemonic, _), claimed in zip(
        decoded(elf, iter(labels.start.tolist())), labels.size.tolist(), strict=True
    ):
        assert mnemonic in ("nop", "jmp") and size == claimed


def test_static_calls_call_trampolines(elf: Elf, tables: KernelTables, nm: dict[str, int]) -> None:
    calls = tables.static_calls
    start, stop = "__start_static_call_sites", "__stop_static_call_sites"
    assert len(calls) == length(nm, start, stop, 8) > 4000
    trampolines = {a for n, a in nm.items() if n.startswith("__SCT__")}
    for (_, size, mnemonic, operand), claimed in zip(
        decoded(elf, iter(calls.start.tolist())), calls.size.tolist(), strict=True
    ):
        assert mnemonic in ("call", "jmp") and int(operand, 16) in trampolines and size == claimed


def test_ftrace_sites_call_fentry(elf: Elf, tables: KernelTables, nm: dict[str, int]) -> None:
    assert len(tables.ftrace) == length(nm, "__start_mcount_loc", "__stop_mcount_loc", 8) > 30_000
    for _, size, mnemonic, operand in decoded(elf, iter(tables.ftrace.tolist()[::5])):
        assert (mnemonic, int(operand, 16), size) == ("call", nm["__fentry__"], 5)


def test_thunk_tables_name_their_branches(
    elf: Elf, tables: KernelTables, nm: dict[str, int]
) -> None:
    thunks = {a for n, a in nm.items() if n.startswith("__x86_indirect_thunk_")}
    # Six bytes where a prefix or a condition makes room for `call *%r8` and similar calls.
    for _, size, mnemonic, operand in decoded(elf, iter(tables.retpolines.tolist())):
        assert int(operand, 16) in thunks and size in (5, 6) and mnemonic[0] in "cj"
    for _, size, mnemonic, operand in decoded(elf, iter(tables.returns.tolist()[::7])):
        assert (mnemonic, int(operand, 16), size) == ("jmp", nm["__x86_return_thunk"], 5)


def test_bugs_locks_and_paravirt_bytes(elf: Elf, tables: KernelTables, nm: dict[str, int]) -> None:
    assert len(tables.bugs) == length(nm, "__start___bug_table", "__stop___bug_table", 12) > 7000
    assert {code_at(elf, a)[:2] for a in tables.bugs.tolist()} == {b"\x0f\x0b"}
    # The table is padded to a page with zeros, which are no entries.
    assert 7000 < len(tables.locks) <= length(nm, "__smp_locks", "__smp_locks_end", 4)
    assert {code_at(elf, a)[0] for a in tables.locks.tolist()} == {0xF0}
    # call *disp32(pv_ops) or jmp
    assert {code_at(elf, a)[0] for a in tables.paravirt.start.tolist()} == {0xFF}
    assert set(tables.paravirt.size.tolist()) == {6}


def test_alternatives_and_exceptions_are_code(elf: Elf, tables: KernelTables) -> None:
    places = tables.alternatives
    assert len(places) > 4000 and int(places.size.min()) > 0 and int(places.size.max()) < 256
    for address in (*places.start.tolist(), *tables.exceptions.tolist()):
        assert code_at(elf, address)
    # X86_FEATURE_SMAP: stac and clac are among the alternatives of 3-byte nops.
    assert 3 in set(places.size.tolist())
    copy = elf.address("copy_from_kernel_nofault")
    assert copy is not None
    inside = (tables.exceptions >= copy) & (tables.exceptions < copy + 0x200)
    assert np.any(inside)
    # mm/maccess.c: when one of its four loads faults, it goes to the code after `return 0`, which
    # returns -EFAULT.
    text = elf.read(copy, 0x100)
    succeeded, failed = text.index(b"\x31\xc0\xeb"), text.index(b"\xf2\xff\xff\xff")
    fixups = [tables.fixups[a] - copy for a in tables.exceptions[inside].tolist()[:4]]
    assert len(set(fixups)) > 2 and min(fixups) > succeeded and min(fixups) < failed < 0x100
    assert max(fixups) < 0x100
    assert sorted(tables.fixups) == sorted(set(tables.exceptions.tolist()))


def test_blacklist_and_regions(tables: KernelTables, nm: dict[str, int]) -> None:
    listed = set(tables.blacklist.tolist())
    # NOKPROBE_SYMBOL() in arch/x86/kernel/kprobes/core.c and arch/x86/kernel/traps.c.
    assert {nm["kprobe_int3_handler"], nm["do_trap"], nm["setup_singlestep"]} <= listed
    assert nm["vfs_read"] not in listed
    regions = {r.name: (r.start, r.end) for r in tables.regions}
    assert regions["noinstr"] == (nm["__noinstr_text_start"], nm["__noinstr_text_end"])
    assert regions["entry"] == (nm["__entry_text_start"], nm["__entry_text_end"])
    low, high = regions["noinstr"]
    assert low <= nm["exc_int3"] < high
    low, high = regions["static call trampolines"]
    assert all(low <= a < high for n, a in nm.items() if n.startswith("__SCT__"))


class Odd(KernelTables):
    def __init__(self, elf: Elf, length: int) -> None:
        super().__init__(elf)
        self._length = length

    def _bytes(self, start: str, stop: str, section: str, entry: int) -> tuple[int, bytes]:
        return super()._bytes("__start___jump_table", "__stop___jump_table", section, entry)


def test_unknown_entry_size_is_refused(elf: Elf) -> None:
    with pytest.raises(KinstError, match="a layout that kinst does not know"):
        _ = Odd(elf, 0).exceptions


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


@given(ranges, st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1))
def test_overlaps_by_brute_force(of: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    def array(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.array(values, dtype=np.uint64)

    made: Spans = spans(array([s for s, _ in of]), array([n for _, n in of]))
    found = made.overlaps(array([a for a, _ in asked]), array([n for _, n in asked]))
    expected = [any(max(a, s) < min(a + m, s + n) for s, n in of) for a, m in asked]
    assert found.tolist() == expected
