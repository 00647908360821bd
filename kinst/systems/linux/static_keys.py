"""Static keys: switches of the kernel. At each site of a key, the kernel's text has a nop while the
key is off, and a jump while the key is on. (At some sites it is the other way round.)

The kernel's jump table has an entry for each site: the site's address, the jump's target, and the
key's address. struct static_key counts the users of a key. When the first user comes or the last
one goes, the kernel exchanges nops and jumps at all sites of the key. On x86 the kernel ends with a
BUG if a site does not have the bytes that the kernel wrote there before.

kinst turns a key on without becoming a user of it: kinst writes the jumps itself, and sets a bit in
the entry of each site. For the kernel, the bit means that the site was in boot code, which has been
freed. So the kernel no longer changes the site (jump_label_can_update() in kernel/jump_label.c,
from Linux 5.10 or earlier to 7.3), but still counts users. The bit has no other use. When kinst
turns the key off, it writes a jump at each site if the key has users, otherwise a nop, and clears
the bit.

The kernel holds jump_label_mutex from before it changes the count until it has written all sites.
If the mutex is free in a stopped machine, no change is half done.

Tested by tests/systems/linux/test_static_keys.py and tests/vm/counts/test_tracepoints.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError, TargetError, UnmappedError
from kinst.core.words import MASK
from kinst.image.btf import Btf
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.modules import LinuxModules
from kinst.systems.linux.tables import KernelTables

ENTRY = 16  # bytes of a struct jump_entry
_KEY = 8  # offset in struct jump_entry of the distance to the key; its lowest bits are flags:
_BRANCH, _INIT = 1, 2
_LOCK = "jump_label_mutex"
CHANGED = "the kernel changed a static key's site while the plan was made"


@dataclass(frozen=True, slots=True)
class KeySite:
    """A site of a static key.

    Attributes:
        entry: address of the site's entry in a jump table.
        address: address of the nop or jump.
        size: size of the nop or jump in bytes.
        target: address that the jump leads to.
    """

    entry: int
    address: int
    size: int
    target: int


class StaticKeys:
    """The static keys of a running kernel and of its modules."""

    def __init__(
        self,
        kernel: LinuxMemory,
        btf: Btf,
        arch: IsaFacts,
        tables: KernelTables,
        modules: LinuxModules,
    ) -> None:
        self._kernel = kernel
        self._file = tables
        self._btf = btf
        self._arch = arch
        self._modules = modules
        self._on: dict[int, list[KeySite]] = {}  # sites that kinst has turned on, by key

    @cached_property
    def _tables(self) -> list[tuple[int, npt.NDArray[np.void]]]:
        """Jump tables of the kernel and of its modules, as they are in memory: (address of the
        table, its entries)."""
        kernel = self._kernel
        found = []
        if kernel.has("__start___jump_table"):
            start = kernel.symbol("__start___jump_table")
            size = kernel.symbol("__stop___jump_table") - start
            found.append((start, kernel.read(start, size - size % ENTRY)))
        found += [module.jump_table for module in self._modules.all]
        layout = np.dtype([("code", "<i4"), ("target", "<i4"), ("key", "<i8")])
        return [(start, np.frombuffer(raw, layout)) for start, raw in found if raw]

    @cached_property
    def _keys(self) -> list[npt.NDArray[np.uint64]]:
        """For each jump table, in the order of `_tables`, the address of each entry's key."""
        keys = []
        for start, rows in self._tables:
            at = np.arange(len(rows), dtype=np.int64) * ENTRY + _KEY
            distance = rows["key"] & ~np.int64(_BRANCH | _INIT)
            keys.append((distance + at).astype(np.uint64) + np.uint64(start))
        return keys

    def sites(self, key: int) -> list[KeySite]:
        """Return the sites of a key, except those in boot code, which has been freed.

        The bit in a site's entry does not show whether the site is in boot code, since kinst sets
        the bit for other sites, too. A kinst that was killed may have left the bit set in an
        attached machine.

        Args:
            key: address of the struct static_key.
        """
        sites = []
        for (start, rows), keys in zip(self._tables, self._keys, strict=True):
            for k in np.flatnonzero(keys == np.uint64(key)).tolist():
                at = start + k * ENTRY
                address = at + int(rows["code"][k]) & MASK
                if self._is_there(address):
                    target = at + 4 + int(rows["target"][k]) & MASK
                    sites.append(KeySite(at, address, self._size(address, target), target))
        return sites

    def targets(self) -> dict[int, tuple[int, int]]:
        """Return the target and the key's address of each site, by the site's address."""
        targets: dict[int, tuple[int, int]] = {}
        for (start, rows), keys in zip(self._tables, self._keys, strict=True):
            at = np.arange(len(rows), dtype=np.uint64) * np.uint64(ENTRY) + np.uint64(start)
            code = at + rows["code"].astype(np.int64).astype(np.uint64)
            to = at + np.uint64(4) + rows["target"].astype(np.int64).astype(np.uint64)
            pairs = zip(to.tolist(), keys.tolist(), strict=True)
            targets.update(zip(code.tolist(), pairs, strict=True))
        return targets

    def _is_there(self, address: int) -> bool:
        """Return whether a running address is in code of the kernel or of a loaded module, and not
        in boot code, which has been freed."""
        linked = address - self._kernel.slide & MASK
        low, high = self._kernel.symbol("_text"), self._kernel.symbol("_end")
        if low <= address < high:
            return not self._file.is_boot_code(linked)
        return self._modules.at(address) is not None

    def _size(self, address: int, target: int) -> int:
        """Return the size in bytes of a site's nop or jump. Raises KinstError if the live bytes are
        neither a nop nor the jump to `target`."""
        for size in self._arch.label_sizes:
            live = self._kernel.read(address, size)
            if live in self._arch.label_nops or live == self._jump(address, target, size):
                return size
        raise KinstError(f"the bytes of the static key's site at {address:#x} are not known")

    def _jump(self, address: int, target: int, size: int) -> bytes:
        try:
            return self._arch.label_jump(address, target, size)
        except OverflowError:  # the site has no room for a jump so far
            return b""

    @cached_property
    def _owner(self) -> int | None:
        """Address of a word that is 0 unless the kernel is changing a key: the owner in
        jump_label_mutex. None if this kernel lacks the mutex or a jump table."""
        if not (self._kernel.has(_LOCK) and self._kernel.has("__start___jump_table")):
            return None
        # In kernels with PREEMPT_RT a mutex is a struct rt_mutex_base.
        member = next((m for m in ("owner", "rtmutex.owner") if self._btf.has("mutex", m)), "")
        return self._kernel.symbol(_LOCK) + self._btf.offset("mutex", member) if member else None

    @property
    def known(self) -> bool:
        """Whether kinst can turn static keys of this kernel on and off."""
        return self._owner is not None

    def switched(self, keys: Collection[int], *, on: bool) -> list[tuple[int, bytes]] | None:
        """Return the memory writes (address, bytes) that turn static keys on for kinst, or undo
        that; None if the kernel is in the middle of changing a key. The machine must be stopped.

        Raises KinstError if a site does not have the bytes that it should have.

        Args:
            keys: addresses of the keys (struct static_key).
            on: True to turn the keys on, False to undo that.
        """
        if not keys:
            return []
        if self._owner is None:
            raise KinstError("kinst cannot tell whether the kernel changes its static keys")
        if self._kernel.number(self._owner):
            return None
        writes = self._turn_on if on else self._turn_off
        return [write for key in sorted(keys) for write in writes(key)]

    def _users(self, key: int) -> int:
        return self._kernel.number(key + self._btf.offset("static_key", "enabled"), 4)

    def _turn_on(self, key: int) -> Iterator[tuple[int, bytes]]:
        sites = self._on[key] = self.sites(key)
        used = bool(self._users(key))
        for site in sites:
            jump = self._jump(site.address, site.target, site.size)
            live = self._kernel.read(site.address, site.size)
            flags = self._kernel.number(site.entry + _KEY, 1)
            known = live == jump if used or flags & _INIT else live in self._arch.label_nops
            if not jump or not known or flags & _BRANCH:
                raise KinstError(CHANGED, "run kinst again")
            yield site.entry + _KEY, bytes([flags | _INIT])
            if live != jump:
                yield site.address, jump

    def _turn_off(self, key: int) -> Iterator[tuple[int, bytes]]:
        used = bool(self._users(key))
        for site in self._on.get(key, ()):
            nop = self._nops.get(site.size, b"")
            if self._still_on(site) and (used or nop):
                if not used:
                    yield site.address, nop
                flags = self._kernel.number(site.entry + _KEY, 1)
                yield site.entry + _KEY, bytes([flags & ~_INIT])

    def _still_on(self, site: KeySite) -> bool:
        """Return whether a site still has the jump and the bit that kinst wrote. Return False for a
        site of a module that has been unloaded."""
        with suppress(TargetError, UnmappedError):
            flags = self._kernel.number(site.entry + _KEY, 1)
            live = self._kernel.read(site.address, site.size)
            jump = self._jump(site.address, site.target, site.size)
            return bool(flags & _INIT) and live == jump
        return False

    @cached_property
    def _nops(self) -> dict[int, bytes]:
        """The nops that this kernel writes at sites of static keys, by their size. kinst reads them
        from sites that have a nop now, since before Linux 5.13 the nop depends on the processor."""
        nops: dict[int, bytes] = {}
        wanted = set(self._arch.label_sizes)
        for start, rows in self._tables:
            for k, (code, _, _) in enumerate(rows.tolist()):
                address = start + k * ENTRY + code & MASK
                for size in wanted - nops.keys():
                    with suppress(TargetError, UnmappedError):
                        live = self._kernel.read(address, size)
                        if live in self._arch.label_nops:
                            nops[size] = live
                if len(nops) == len(wanted):
                    return nops
        return nops
