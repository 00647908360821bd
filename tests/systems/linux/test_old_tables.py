"""Differences of kernels before and after Debian 12's, in tables made here."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kinst.core.errors import KinstError
from kinst.systems.linux import riscv64
from kinst.systems.linux.amd64 import LINUX
from kinst.systems.linux.ftrace import INSIDE, USED, Ftrace
from kinst.systems.linux.tables import KernelTables

TABLE = 0xFFFF_FFFF_8200_0000
CALLS = [0xFFFF_FFFF_8100_0010, 0xFFFF_FFFF_8100_0200, 0xFFFF_FFFF_8100_0333]


def with_table(raw: bytes) -> KernelTables:
    """Return a kernel of which only __parainstructions is used."""
    places = {"__parainstructions": TABLE, "__parainstructions_end": TABLE + len(raw)}
    elf: Any = SimpleNamespace(
        path=Path("vmlinux"),
        address=places.get,
        read=lambda at, size: raw[at - TABLE : at - TABLE + size],
    )
    return KernelTables(elf)


def entries() -> bytes:
    """Return struct paravirt_patch_site: an address, a type, a length, 2 bytes, padding of 4."""
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
    """Return a kernel of which only the table of BUG() is used, and the addresses of the BUGs.

    Each third one is a warning.

    Args:
        entry: format of struct for an entry, which begins with the distance to the code.
    """
    size, table = struct.calcsize(entry), CALLS[0] + 0x100_0000
    at = [CALLS[0] + 0x1230 * k for k in range(count)]
    raw = b""
    for k, code in enumerate(at):
        # Distances to texts, which are after the code.
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
        # Fix-ups are together, after the code.
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
    """ftrace's records of one function's nop, in an untraced kernel."""

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


CALLER = 0xFFFF_FFFF_8002_29E8  # ftrace_caller of Debian's 7.2.13 for riscv64,
AUIPC = {  # and, by the addresses of functions, the auipc that leads to it
    0xFFFF_FFFF_8000_21E0: "97120200",
    0xFFFF_FFFF_8048_24F8: "9702baff",
    0xFFFF_FFFF_8048_2768: "9702baff",
}


class CallSites(Ftrace):
    """Records of a riscv64 kernel with such text, of which one is a tracer's."""

    def __init__(self, text: dict[int, bytes], ips: list[int]) -> None:
        def read(address: int, size: int) -> bytes:
            start = max((at for at in text if at <= address), default=address)
            return text.get(start, b"")[address - start :][:size].ljust(size, b"\0")

        kernel: Any = SimpleNamespace(
            read=read, has=lambda name: True, symbol={"ftrace_caller": CALLER}.__getitem__
        )
        super().__init__(kernel, SimpleNamespace(), riscv64.LINUX.call_sites)  # type: ignore[arg-type]
        self._index = np.array(ips, np.uint64), np.zeros(len(ips), np.uint64)

    def record(self, address: int, flags_now: object = None) -> None:
        return None


def test_call_sites_of_two_nops() -> None:
    """riscv64 before 6.16."""
    text = dict.fromkeys(AUIPC, bytes.fromhex("13000000 13000000 0111"))
    traced, first, second = AUIPC
    text[traced] = bytes.fromhex("97120200 e7828280 0111")
    ftrace = CallSites(text, list(AUIPC))
    assert (ftrace.size, ftrace.sites.tolist()) == (8, list(AUIPC))
    for at in (first, first + 4, second, second + 4):
        assert ftrace.refusal(at, 4, text[first][:4]) == ""
    assert ftrace.refusal(traced, 4, text[traced][:4]) == USED
    assert ftrace.refusal(first + 8, 2, text[first][8:]) is None


def test_call_sites_of_auipc_and_nop() -> None:
    """riscv64 since 6.16: the record's address is the nop's.

    The auipc is the one that leads to ftrace_caller from there, not any other.
    """
    text = {at: bytes.fromhex(f"{auipc} 13000000 0111") for at, auipc in AUIPC.items()}
    traced, first, second = AUIPC
    text[traced] = text[traced][:4] + bytes.fromhex("e7828280 0111")
    ftrace = CallSites(text, [at + 4 for at in AUIPC])
    assert (ftrace.size, ftrace.sites.tolist()) == (8, list(AUIPC))
    for at in (first, second):
        assert ftrace.refusal(at, 4, text[at][:4]) == ""
        assert ftrace.refusal(at + 4, 4, text[at][4:8]) == ""
        assert ftrace.refusal(at, 4, bytes.fromhex("97024aff")) == USED
        assert ftrace.refusal(at + 4, 4, bytes.fromhex("e7820000")) == USED
    assert ftrace.refusal(traced + 4, 4, text[traced][4:8]) == USED
    assert ftrace.refusal(first + 6, 4, bytes(4)) == INSIDE
    assert ftrace.refusal(first + 8, 2, text[first][8:]) is None
    assert ftrace.refusal(first - 8, 8, bytes(8)) is None  # ftrace's own number of the function


def test_claims_are_for_both_halves_of_a_call_site() -> None:
    """Otherwise ftrace would find the auipc gone, and stop itself."""
    flags = {0x1000: 0, 0x1010: 0}
    bits = {"FTRACE_FL_DISABLED": 1 << 25, "FTRACE_FL_ENABLED": 1 << 31}
    _, first, second = AUIPC
    text = {at: bytes.fromhex(f"{auipc} 13000000") for at, auipc in AUIPC.items()}
    for at in (first, first + 4):
        ftrace = CallSites(text, [first + 4, second + 4])
        ftrace._index = ftrace._index[0], np.array(list(flags), np.uint64)
        ftrace._btf = SimpleNamespace(enumerator=bits.get)  # type: ignore[assignment]
        ftrace._kernel.number = lambda at, size=8: flags[at]  # type: ignore[method-assign]
        assert ftrace.claims([at, first + 8]) == [(0x1003, b"\x02")]


def test_a_kernel_without_dynamic_ftrace() -> None:
    """Its types have neither records nor their flags."""
    kernel: Any = SimpleNamespace(has=lambda name: False)
    types: Any = SimpleNamespace(enumerator=lambda name: None)
    ftrace = Ftrace(kernel, types, LINUX.call_sites)
    assert ftrace.claims(CALLS) == [] and ftrace.releases([]) == []
    assert ftrace.refusal(CALLS[0], 5, bytes(5)) is None
