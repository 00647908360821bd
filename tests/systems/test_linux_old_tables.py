"""What kernels before and after that of Debian 12 do otherwise, in tables made here."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kinst.core.errors import KinstError
from kinst.systems.linux.amd64 import LINUX
from kinst.systems.linux.ftrace import INSIDE, USED, Ftrace
from kinst.systems.linux.tables import KernelTables

TABLE = 0xFFFF_FFFF_8200_0000
CALLS = [0xFFFF_FFFF_8100_0010, 0xFFFF_FFFF_8100_0200, 0xFFFF_FFFF_8100_0333]


def with_table(raw: bytes) -> KernelTables:
    """A kernel of which only __parainstructions is looked at."""
    places = {"__parainstructions": TABLE, "__parainstructions_end": TABLE + len(raw)}
    elf: Any = SimpleNamespace(
        path=Path("vmlinux"),
        address=places.get,
        read=lambda at, size: raw[at - TABLE : at - TABLE + size],
    )
    return KernelTables(elf)


def entries() -> bytes:
    """struct paravirt_patch_site: an address, a type, a length, 2 bytes, padding of 4."""
    return b"".join(struct.pack("<QBBHI", at, 7, 6, 0, 0) for at in CALLS)


@pytest.mark.parametrize("missing", [0, 4])
def test_the_last_paravirt_entry_may_lack_its_padding(missing: int) -> None:
    """Linux 5.10: 121,228 bytes, which are 12 more than a multiple of 16."""
    found = with_table(entries()[: 16 * len(CALLS) - missing]).paravirt
    inside = np.array([CALLS[0] - 1, CALLS[0], CALLS[2] + 5, CALLS[2] + 6], np.uint64)
    hit = found.overlaps(inside, np.ones(4, np.uint64))
    assert len(found) == len(CALLS) and hit.tolist() == [False, True, True, False]


def test_a_paravirt_table_of_another_layout_is_refused() -> None:
    with pytest.raises(KinstError, match="40 bytes, which are no whole entries"):
        _ = with_table(entries()[:40]).paravirt


def bug_table(entry: str, count: int) -> tuple[KernelTables, list[int]]:
    """(a kernel of which only the table of BUG() is looked at, where those are); each third one is
    a warning.  entry: of struct, as its first the distance to the code."""
    size, table = struct.calcsize(entry), CALLS[0] + 0x100_0000
    at = [CALLS[0] + 0x1230 * k for k in range(count)]
    raw = b""
    for k, code in enumerate(at):
        # Distances to texts, which are behind the code.
        middle = [0x20_0000 + 8 * k] * (len(struct.unpack(entry, bytes(size))) - 3)
        raw += struct.pack(entry, code - table - size * k, *middle, 900 + k, k % 3 == 0)
    places = {"__start___bug_table": table, "__stop___bug_table": table + len(raw)}
    text = SimpleNamespace(address=CALLS[0], end=CALLS[0] + 0x1230 * count, flags=6)
    elf: Any = SimpleNamespace(
        path=Path("vmlinux"),
        address=places.get,
        sections=(SimpleNamespace(address=table, end=table + len(raw), flags=3), text),
        read=lambda start, size: raw[start - table : start - table + size],
    )
    return KernelTables(elf), at


@pytest.mark.parametrize("count", [6, 7])
@pytest.mark.parametrize(("entry", "size"), [("<iiHH", 12), ("<iiiHH", 16)])
def test_entries_of_bugs_with_and_without_a_format(entry: str, size: int, count: int) -> None:
    """Six entries of 16 bytes are as long as eight of 12, as in Debian's 7.3."""
    found, at = bug_table(entry, count)
    assert found.bug_size == size
    assert found.bugs.tolist() == at
    assert found.fatal_bugs.tolist() == [code for k, code in enumerate(at) if k % 3]


def test_a_table_of_bugs_of_another_layout_is_refused() -> None:
    found, _ = bug_table("<iiiiiHH", 6)
    with pytest.raises(KinstError, match="144 bytes of a layout that kinst does not know"):
        _ = found.bugs


@pytest.mark.parametrize("entry", ["<iii", "<ii"])
def test_entries_of_exceptions_with_and_without_what_to_do(entry: str) -> None:
    """Linux 5.10 on arm64 has 8 bytes; 12 entries of them are as long as 8 of 12."""
    size, count = struct.calcsize(entry), 24
    table, at = CALLS[0] + 0x100_0000, [CALLS[0] + 0x40 * k for k in range(count)]
    raw = b""
    for k, code in enumerate(at):
        here = table + size * k
        third = (0x7000_0000,) if size == 12 else ()
        # Fix-ups are together, behind the code.
        raw += struct.pack(entry, code - here, code + 0x8000 - here - 4, *third)
    places = {"__start___ex_table": table, "__stop___ex_table": table + len(raw)}
    text = SimpleNamespace(address=CALLS[0], end=at[-1] + 0x9000, flags=6)
    elf: Any = SimpleNamespace(
        path=Path("vmlinux"), address=places.get, sections=(text,),
        read=lambda start, size: raw[start - table : start - table + size],
    )  # fmt: skip
    found = KernelTables(elf)
    assert found.exception_size == size
    assert found.fixups == {code: code + 0x8000 for code in at}


class TracedKernel(Ftrace):
    """ftrace's records of one function's nop, in a kernel that nobody traces."""

    site = 0xFFFF_FFFF_8100_0000

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(), SimpleNamespace(), LINUX.call_sites)  # type: ignore[arg-type]

    @property
    def sites(self) -> Any:
        return np.array([self.site], np.uint64)

    def record(self, address: int, flags_now: object = None) -> None:
        return None


@pytest.mark.parametrize(
    ("live", "refusal"),
    [
        ("0f1f440000", ""),  # since 5.13
        ("6666666690", ""),  # before, as some processors like it
        ("e812345678", USED),  # a call of a tracer
        ("6666669090", USED),
    ],
)
def test_nops_that_ftrace_leaves(live: str, refusal: str) -> None:
    ftrace = TracedKernel()
    assert ftrace.refusal(ftrace.site, 5, bytes.fromhex(live)) == refusal
    assert ftrace.refusal(ftrace.site + 3, 5, bytes(5)) == INSIDE
    assert ftrace.refusal(ftrace.site + 5, 5, bytes(5)) is None


def test_a_kernel_without_dynamic_ftrace() -> None:
    """It has neither records nor their flags in its types."""
    kernel: Any = SimpleNamespace(has=lambda name: False)
    types: Any = SimpleNamespace(enumerator=lambda name: None)
    ftrace = Ftrace(kernel, types, (bytes(5),))
    assert ftrace.claims(CALLS) == [] and ftrace.releases([]) == []
    assert ftrace.refusal(CALLS[0], 5, bytes(5)) is None
