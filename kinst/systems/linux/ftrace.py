"""ftrace's records: the nop (or two, or an auipc and a nop) at nearly every function's start, and
who owns it.

ftrace keeps one struct dyn_ftrace (ip, flags) for each such nop, in pages of records sorted
by ip, chained from ftrace_pages_start.  The low bits of flags count the users; bit 31 says
that the nop is a call now; bit 25 (FTRACE_FL_DISABLED) says that the code is not ftrace's to
touch.  Linux 6.1 skips a record that is DISABLED and not ENABLED in everything that would
change it (checked in the running kernel's disassembly: the test is flags & 0x82000000 ==
0x2000000, in __ftrace_hash_rec_update before it counts a user, and in ftrace_check_record
before it decides on a change, where it answers "ignore"): no user is counted, no byte is
compared or written, no warning is given, and filters do not match the function.

The flag may be taken back only when ftrace has no user at all: a user that came while the
record was disabled was not counted in it, and ftrace would stop itself with a warning when it
finds nothing to uncount.  Otherwise the flag stays, which only makes that function unknown to
ftrace until the kernel is booted again.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError, UnmappedError
from kinst.image.btf import Btf
from kinst.systems.linux.isafacts import CallSite
from kinst.systems.linux.memory import LinuxMemory

U64 = npt.NDArray[np.uint64]
USED = "ftrace uses it now (a tracer, kprobe, bpf program or livepatch is attached)"
INSIDE = "it overlaps ftrace's call site without starting at it"
LEFT = "ftrace's call site is left to it (-x plant=no-callsite)"
# A chain longer than this is not a chain of ftrace pages.
MAX_PAGES = 65536
MANY = 64  # records whose flags are read with those of all others
_LOOKED = 32  # call sites that are looked at to know their layout
_NEAR = 4096  # bytes between records that are read at once


def no_users(kernel: LinuxMemory) -> tuple[int, int] | None:
    """Address of a word, and what it is while no ftrace_ops is registered; None where that is not
    known."""
    if not (kernel.has("ftrace_ops_list") and kernel.has("ftrace_list_end")):
        return None
    return kernel.symbol("ftrace_ops_list"), kernel.symbol("ftrace_list_end")


@dataclass(frozen=True, slots=True)
class FtraceRecord:
    """flags_address: of the 8-byte flags word.  flags: its value when it was read.

    in_use: a tracer, a kprobe, a bpf program or a livepatch has this function now.
    """

    flags_address: int
    flags: int
    in_use: bool
    disabled: bool


class Ftrace:
    """The ftrace records of a running kernel, indexed at the first question."""

    def __init__(self, kernel: LinuxMemory, btf: Btf, call_sites: tuple[CallSite, ...]) -> None:
        """call_sites: how they may be laid out (IsaFacts)."""
        self._kernel = kernel
        self._btf = btf
        self._call_sites = call_sites

    @cached_property
    def layout(self) -> CallSite:
        """How this kernel's call sites are laid out: as most are of some that are looked at.  Each
        is compared to it before it is planted."""
        first, *others = self._call_sites
        if not others:
            return first
        ips = self._index[0]
        looked = ips[:: len(ips) // _LOOKED + 1].tolist()

        def fitting(one: CallSite) -> int:
            sites = [ip - one.head_size for ip in looked]
            return sum(self._at(s, one.size) in self._unused(one, s) for s in sites)

        return max(self._call_sites, key=fitting)

    def _at(self, site: int, size: int) -> bytes:
        """Code, or none where none is: a module may begin with what another layout has the second
        half of a call site."""
        try:
            return self._kernel.read(site, size)
        except UnmappedError:
            return b""

    def _unused(self, layout: CallSite, site: int) -> tuple[bytes, ...]:
        """What a call site of this layout has while ftrace does not use it."""
        if layout.head is None:
            return layout.nops
        if not self._kernel.has(layout.caller):
            return ()
        return layout.unused(self._kernel.symbol(layout.caller) - site)

    @cached_property
    def size(self) -> int:
        """Bytes of a call site."""
        return self.layout.size

    @cached_property
    def sites(self) -> U64:
        """Running addresses of all call sites, sorted."""
        return self._index[0] - np.uint64(self.layout.head_size)

    @cached_property
    def _index(self) -> tuple[U64, U64]:
        """The addresses that records have, in order, and those of their flags words."""
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
            raise KinstError("the running kernel's list of ftrace records has no end")
        ip, where = np.concatenate(ips), np.concatenate(flags)
        order = np.argsort(ip, kind="stable")
        return ip[order], where[order]

    def __len__(self) -> int:
        return len(self._index[0])

    @cached_property
    def _bits(self) -> tuple[int, int, int]:
        """FTRACE_FL_DISABLED, FTRACE_FL_ENABLED, and the mask of the user count."""
        disabled = self._btf.enumerator("FTRACE_FL_DISABLED")
        enabled = self._btf.enumerator("FTRACE_FL_ENABLED")
        if disabled is None or enabled is None:
            raise KinstError("the kernel's types do not have ftrace's flags (FTRACE_FL_DISABLED)")
        # Every flag lies above the count; the lowest of them bounds it.  Which is the lowest
        # changed over time (DIRECT_EN is bit 23 in 6.1, TOUCHED is 20 in 6.6).
        low = [self._btf.enumerator(f"FTRACE_FL_{name}") for name in
               ("DISABLED", "DIRECT_EN", "CALL_OPS_EN", "TOUCHED", "MODIFIED")]  # fmt: skip
        return disabled, enabled, min(bit for bit in low if bit) - 1

    def flags_now(self) -> U64:
        """The flags of all records, in the order of their sites, read at once."""
        where = self._index[1]
        order = np.argsort(where)
        there = where[order]
        far = np.flatnonzero(np.diff(there) > _NEAR) + 1
        found = []
        for some in np.split(there, far) if len(there) else ():
            first = int(some[0])
            raw = np.frombuffer(self._kernel.read(first, int(some[-1]) + 8 - first), np.uint8)
            words = np.lib.stride_tricks.sliding_window_view(raw, 8)
            rows = words[(some - some[0]).astype(np.int64)]
            found.append(np.ascontiguousarray(rows).view("<u8").reshape(-1))
        flags = np.zeros(len(where), np.uint64)
        flags[order] = np.concatenate([*found, flags[:0]])
        return flags

    def record(self, address: int, flags_now: U64 | None = None) -> FtraceRecord | None:
        """The record of the call site around this running address, or None.  flags_now: what
        flags_now() has said; without it, the record's own flags are read."""
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
        """None for an instruction outside of every call site; "" for one that may be planted
        because ftrace leaves its call site unused; else why not.  live: its bytes now.
        flags_now: as in record()."""
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
        found = self.record(address, flags_now)
        return USED if found is not None and found.in_use else ""

    def idle(self) -> bool:
        """Whether ftrace has no user at all (no ftrace_ops is registered)."""
        known = no_users(self._kernel)
        return known is not None and self._kernel.number(known[0]) == known[1]

    def claims(self, addresses: Iterable[int]) -> list[tuple[int, bytes]]:
        """Writes of data that keep ftrace off these nops; made while the machine is stopped
        and before the nops are overwritten.  Records already disabled are left alone.

        Each write is the one byte of the flags word that holds the flag.  Raises KinstError
        when ftrace uses one of them.
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
            raise KinstError(f"ftrace has begun to use the function at {first:#x}")
        byte = flags[free] >> np.uint64(shift // 8 * 8) & np.uint64(0xFF) | np.uint64(
            1 << shift % 8
        )
        data = byte.astype(np.uint8).tobytes()
        claimed = (places[free] + np.uint64(shift // 8)).tolist()
        return [(place, data[k : k + 1]) for k, place in enumerate(claimed)]

    def _inside(
        self, addresses: Iterable[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Those of the addresses that are in a call site, and the places of their sites in the
        index before them."""
        wanted = np.fromiter(addresses, np.uint64)
        if not len(self.sites):
            return np.zeros(0, np.int64), wanted[:0]
        at = np.searchsorted(self.sites, wanted, side="right").astype(np.int64) - 1
        begin = self.sites[np.maximum(at, 0)]
        inside = (at >= 0) & (wanted < begin + np.uint64(self.size))
        return at[inside], wanted[inside]

    def releases(self, claimed: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Writes that undo what claims() returned; while the machine is stopped and after the
        nops are back.  Empty when ftrace has users: see the module's text."""
        if not len(self) or not self.idle():
            return []
        shift = self._bits[0].bit_length() - 1
        places, known = [at for at, _ in claimed], dict[int, int]()
        if len(places) > MANY:
            byte = np.uint64(shift // 8)
            now = self.flags_now() >> np.uint64(8) * byte & np.uint64(0xFF)
            known = dict(zip((self._index[1] + byte).tolist(), now.tolist(), strict=True))
        bytes_now = [known[at] if at in known else self._kernel.number(at, 1) for at in places]
        return [
            (at, bytes([byte & ~(1 << shift % 8) & 0xFF]))
            for at, byte in zip(places, bytes_now, strict=True)
        ]
