"""ftrace's call sites, and the records that tell whether ftrace uses them.

A call site is a nop, two nops, or an auipc and a nop, at the start of nearly every function. ftrace
has one struct dyn_ftrace (ip, flags) for each call site, in pages of records sorted by ip, linked
from ftrace_pages_start. The low bits of flags count the users; bit 31 (FTRACE_FL_ENABLED) is set
while the nop is a call; bit 25 (FTRACE_FL_DISABLED) means that ftrace must not touch the code.

kinst makes ftrace ignore a call site: it sets DISABLED in the record, which must not be ENABLED.
For such a record, Linux 6.1 counts no user, compares and writes no byte, and prints no warning;
filters do not match the function. (Checked in the running kernel's disassembly: the test is flags &
0x82000000 == 0x2000000, in __ftrace_hash_rec_update before it counts a user, and in
ftrace_check_record before it decides on a change, where it returns "ignore".)

kinst may clear DISABLED only while ftrace has no user at all. A user that came while the record was
disabled is not in the record's count. When this user goes, ftrace would decrement the count, and
disable itself with a warning. If ftrace has users, kinst leaves the flag set, and ftrace ignores
the function until the kernel boots again.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError, UnmappedError
from kinst.image.btf import Btf
from kinst.systems.linux.isafacts import CallSite
from kinst.systems.linux.memory import LinuxMemory

U64 = npt.NDArray[np.uint64]
USED = "ftrace uses it now (a tracer, kprobe, bpf program or livepatch is attached)"
INSIDE = "it overlaps ftrace's call site without starting at it"
LEFT = "ftrace's call site is left to it (-x plant=no-callsite)"
# A longer list is not a list of ftrace pages.
MAX_PAGES = 65536
MANY = 64  # for more records than this, the flags of all records are read at once
_LAYOUT_SAMPLES = 32  # call sites that are compared to find their layout
_NEAR = 4096  # records that are no further apart are read at once


def no_users(kernel: LinuxMemory) -> tuple[int, int] | None:
    """Return (address, value) of a word of the kernel that has this value while no ftrace_ops is
    registered, that is, while ftrace has no user. Return None if the kernel lacks the symbols."""
    if not (kernel.has("ftrace_ops_list") and kernel.has("ftrace_list_end")):
        return None
    return kernel.symbol("ftrace_ops_list"), kernel.symbol("ftrace_list_end")


@dataclass(frozen=True, slots=True)
class FtraceRecord:
    """ftrace's record of one call site, as it was when kinst read it.

    Attributes:
        flags_address: address of the record's 8-byte flags word.
        flags: value of that word.
        in_use: whether a tracer, kprobe, bpf program or livepatch uses the call site.
        disabled: whether ftrace must not touch the call site.
    """

    flags_address: int
    flags: int
    in_use: bool
    disabled: bool


class Ftrace:
    """All ftrace records of a running kernel, read when they are first used."""

    def __init__(self, kernel: LinuxMemory, btf: Btf, call_sites: tuple[CallSite, ...]) -> None:
        """Describe the records; they are read when they are first used.

        Args:
            call_sites: layouts that a call site may have on this ISA (IsaFacts.call_sites).
        """
        self._kernel = kernel
        self._btf = btf
        self._call_sites = call_sites

    @cached_property
    def layout(self) -> CallSite:
        """The layout of this kernel's call sites: of the possible layouts, the one that fits the
        most call sites of a sample."""
        first, *others = self._call_sites
        if not others:
            return first
        ips = self._index[0]
        sample = ips[:: len(ips) // _LAYOUT_SAMPLES + 1].tolist()

        def fitting(call_site: CallSite) -> int:
            sites = [ip - call_site.head_size for ip in sample]
            return sum(self._at(s, call_site.size) in self._unused(call_site, s) for s in sites)

        return max(self._call_sites, key=fitting)

    def _at(self, site: int, size: int) -> bytes:
        """Return the live bytes of a call site, or b"" if they are not mapped. While `layout` is
        not known, a call site's address may be wrong, and may lie outside of the module's memory.

        Args:
            site: running address of the call site.
            size: its size in bytes.
        """
        try:
            return self._kernel.read(site, size)
        except UnmappedError:
            return b""

    def _unused(self, layout: CallSite, site: int) -> tuple[bytes, ...]:
        """Return each byte string that a call site may hold while ftrace does not use it.

        Args:
            layout: layout of the call site.
            site: running address of the call site.
        """
        if layout.head is None:
            return layout.nops
        if not self._kernel.has(layout.caller):
            return ()
        return layout.unused(self._kernel.symbol(layout.caller) - site)

    @cached_property
    def size(self) -> int:
        """Size of a call site in bytes."""
        return self.layout.size

    @cached_property
    def sites(self) -> U64:
        """Running addresses of all call sites, ascending."""
        return self._index[0] - np.uint64(self.layout.head_size)

    @cached_property
    def _index(self) -> tuple[U64, U64]:
        """(addresses in all records (dyn_ftrace.ip), ascending; addresses of the records' flags
        words, in the same order)."""
        kernel, btf = self._kernel, self._btf
        empty = np.zeros(0, dtype=np.uint64)
        if not kernel.has("ftrace_pages_start"):
            return empty, empty
        size = btf.size("dyn_ftrace")
        ip_at, flags_at = btf.offset("dyn_ftrace", "ip"), btf.offset("dyn_ftrace", "flags")
        members = [btf.offset("ftrace_page", m) for m in ("next", "records", "index")]
        page_size = btf.size("ftrace_page")
        page = kernel.number(kernel.symbol("ftrace_pages_start"))
        ips, flags = [empty], [empty]
        for _ in range(MAX_PAGES):
            if not page:
                break
            raw = kernel.read(page, page_size)
            page, records = (int.from_bytes(raw[m : m + 8], "little") for m in members[:2])
            count = int.from_bytes(raw[members[2] : members[2] + 4], "little", signed=True)
            if count <= 0:
                continue
            rows = np.frombuffer(kernel.read(records, count * size), dtype=np.uint8)
            rows = rows.reshape(count, size)
            ips.append(np.ascontiguousarray(rows[:, ip_at : ip_at + 8]).view("<u8").reshape(-1))
            step = np.arange(count, dtype=np.uint64) * np.uint64(size)
            flags.append(step + np.uint64(records + flags_at))
        else:
            raise KinstError("the kernel's list of ftrace records is damaged: it has no end")
        ip, where = np.concatenate(ips), np.concatenate(flags)
        order = np.argsort(ip, kind="stable")
        return ip[order], where[order]

    def __len__(self) -> int:
        return len(self._index[0])

    @cached_property
    def _bits(self) -> tuple[int, int, int]:
        """The masks FTRACE_FL_DISABLED and FTRACE_FL_ENABLED, and the mask of the count of users,
        in a flags word."""
        disabled = self._btf.enumerator("FTRACE_FL_DISABLED")
        enabled = self._btf.enumerator("FTRACE_FL_ENABLED")
        if disabled is None or enabled is None:
            raise KinstError("the kernel's types do not have ftrace's flags (FTRACE_FL_DISABLED)")
        # The count is below the lowest flag, which differs between kernels (DIRECT_EN is bit 23 in
        # Linux 6.1, TOUCHED is bit 20 in 6.6).
        low = [self._btf.enumerator(f"FTRACE_FL_{name}") for name in
               ("DISABLED", "DIRECT_EN", "CALL_OPS_EN", "TOUCHED", "MODIFIED")]  # fmt: skip
        return disabled, enabled, min(bit for bit in low if bit) - 1

    def flags_now(self) -> U64:
        """Read the flags words of all records now, and return them in the order of `sites`."""
        where = self._index[1]
        order = np.argsort(where, kind="stable")
        there = where[order]
        far = np.flatnonzero(np.diff(there) > _NEAR) + 1
        blocks = []
        for some in np.split(there, far) if len(there) else ():
            first = int(some[0])
            raw = np.frombuffer(self._kernel.read(first, int(some[-1]) + 8 - first), np.uint8)
            words = np.lib.stride_tricks.sliding_window_view(raw, 8)
            rows = words[(some - some[0]).astype(np.int64)]
            blocks.append(np.ascontiguousarray(rows).view("<u8").reshape(-1))
        flags = np.zeros(len(where), np.uint64)
        flags[order] = np.concatenate([*blocks, flags[:0]])
        return flags

    def record(self, address: int, flags_now: U64 | None = None) -> FtraceRecord | None:
        """Return the record of the call site that contains a running address; None if no call site
        does.

        Args:
            flags_now: the result of flags_now(). If it is None, only this record's flags word is
                read.
        """
        sites, where = self.sites, self._index[1]
        at = int(np.searchsorted(sites, np.uint64(address), side="right")) - 1
        if at < 0 or address >= int(sites[at]) + self.size:
            return None
        flags = self._kernel.number(int(where[at])) if flags_now is None else int(flags_now[at])
        disabled, enabled, count = self._bits
        return FtraceRecord(
            int(where[at]), flags, bool(flags & (enabled | count)), bool(flags & disabled)
        )

    def refusal(
        self, address: int, size: int, live: bytes, flags_now: U64 | None = None
    ) -> str | None:
        """Return why an instruction may not be planted because of ftrace.

        Returns:
            None if the instruction is outside of all call sites; "" if it may be planted, since
            ftrace does not use its call site; otherwise the reason.

        Args:
            address: running address of the instruction.
            size: its size in bytes.
            live: its live bytes.
            flags_now: the result of flags_now(). If it is None, one flags word is read.
        """
        sites = self.sites
        last = int(np.searchsorted(sites, np.uint64(address + size), side="left")) - 1
        inside = address - int(sites[last]) if last >= 0 else self.size
        if inside >= self.size:
            return None
        if inside < 0 or inside + size > self.size:
            return INSIDE
        may_be = self._unused(self.layout, address - inside)
        if all(live != unused[inside : inside + size] for unused in may_be):
            return USED
        record = self.record(address, flags_now)
        return USED if record is not None and record.in_use else ""

    def idle(self) -> bool:
        """Return whether ftrace has no user at all now: no ftrace_ops is registered."""
        word = no_users(self._kernel)
        return word is not None and self._kernel.number(word[0]) == word[1]

    def claims(self, addresses: Iterable[int]) -> list[tuple[int, bytes]]:
        """Return the memory writes that make ftrace ignore the call sites at these addresses: each
        sets FTRACE_FL_DISABLED in a record.

        The caller must make the writes while the machine is stopped, before it overwrites the call
        sites. Each write is (address, one byte): the byte that contains the flag. A record that is
        disabled already needs no write. Raises KinstError if ftrace uses one of the call sites now.
        """
        if not len(self):  # a kernel without dynamic ftrace, which has no such flags
            return []
        shift = self._bits[0].bit_length() - 1
        disabled, enabled, count = self._bits
        at, wanted = self._inside(addresses)
        places = self._index[1][at]
        if len(at) > MANY:
            flags = self.flags_now()[at]
        else:
            flags = np.array([self._kernel.number(p) for p in places.tolist()], np.uint64)
        free = flags & np.uint64(disabled) == 0
        used = np.flatnonzero(free & (flags & np.uint64(enabled | count) != 0))
        if len(used):
            first = int(wanted[used[0]])
            raise KinstError(f"the kernel's ftrace traces the function at {first:#x} already")
        byte = flags[free] >> np.uint64(shift // 8 * 8) & np.uint64(0xFF) | np.uint64(
            1 << shift % 8
        )
        data = byte.astype(np.uint8).tobytes()
        claimed = (places[free] + np.uint64(shift // 8)).tolist()
        return [(place, data[k : k + 1]) for k, place in enumerate(claimed)]

    def _inside(
        self, addresses: Iterable[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Select the addresses that lie in call sites. Return two arrays in the same order: the
        indexes of their call sites in `sites`, and the addresses."""
        wanted = np.fromiter(addresses, np.uint64)
        if not len(self.sites):
            return np.zeros(0, np.int64), wanted[:0]
        at = np.searchsorted(self.sites, wanted, side="right").astype(np.int64) - 1
        begin = self.sites[np.maximum(at, 0)]
        inside = (at >= 0) & (wanted < begin + np.uint64(self.size))
        return at[inside], wanted[inside]

    def releases(self, claimed: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Return the memory writes that undo claims(): each clears FTRACE_FL_DISABLED in a record.
        If ftrace has users, return no writes: the flags must then stay set.

        The caller must make the writes while the machine is stopped, after it has restored the call
        sites.

        Args:
            claimed: the writes that claims() returned.
        """
        if not len(self) or not self.idle():
            return []
        shift = self._bits[0].bit_length() - 1
        places, by_place = [at for at, _ in claimed], dict[int, int]()
        if len(places) > MANY:
            byte = np.uint64(shift // 8)
            now = self.flags_now() >> np.uint64(8) * byte & np.uint64(0xFF)
            by_place = dict(zip((self._index[1] + byte).tolist(), now.tolist(), strict=True))
        bytes_now = [
            by_place[at] if at in by_place else self._kernel.number(at, 1) for at in places
        ]
        return [
            (at, bytes([byte & ~(1 << shift % 8) & 0xFF]))
            for at, byte in zip(places, bytes_now, strict=True)
        ]
