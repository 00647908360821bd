"""Requests that a trace of --live makes to the module, recorded and repeated.

They are repeated by a process that starts immediately, so that it can be killed at any moment,
hundreds of times.  Runs in a guest (live_in_guest.py).  The module keeps its scratch for the next
owner, at the same address, so code that was made once can be planted again.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kinst
from kinst.core.machine import LivePatch
from kinst.machines.live.device import Device

PAGE = 4096
_ENDS = ("_stext", "_etext")
_KEYS = ("__start___jump_table", "__stop___jump_table")
_ENTRY = struct.Struct("<iiq")  # of static keys: distances to the code, to its target, to a key
# ftrace's own calls keep the function that was called last.
_FTRACE, _CALL = ("ftrace_call", "ftrace_regs_call"), 5


class Kcore:
    """The kernel's text from /proc/kcore, without kinst.

    Bytes that the kernel itself changes, and does not change back, are read as zeros.
    """

    def __init__(self) -> None:
        symbols = (line.split() for line in Path("/proc/kallsyms").read_text().splitlines())
        wanted = (*_ENDS, *_FTRACE, *_KEYS)
        places = {name: int(place, 16) for place, _, name, *_ in symbols if name in wanted}
        self.low, self.high = (places[name] for name in _ENDS)
        self._keys = tuple(places[name] for name in _KEYS)
        self._own = [places[name] for name in _FTRACE if name in places]
        self._fd = os.open("/proc/kcore", os.O_RDONLY)
        head = os.pread(self._fd, 64, 0)
        start, count = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<H", head, 56)[0]
        table = os.pread(self._fd, 56 * count, start)
        (self._offset,) = (
            offset - address
            for _, _, offset, address, _, size, _, _ in struct.iter_unpack("<IIQQQQQQ", table)
            if address <= self.low and self.high <= address + size
        )

    def keyed(self) -> frozenset[int]:
        """Return addresses of bytes that the kernel itself rewrites when a static key is
        flipped."""
        low, high = self._keys
        table = self.read(low, high)
        rows = zip(range(low, high, _ENTRY.size), _ENTRY.iter_unpack(table), strict=True)
        code = (at + distance for at, (distance, _, _) in rows)
        return frozenset(first + k for first in code for k in range(_CALL))

    def read(self, low: int, high: int) -> bytes:
        data = bytearray()
        while len(data) < high - low:
            part = os.pread(
                self._fd, min(high - low - len(data), 1 << 20), self._offset + low + len(data)
            )
            assert part, "/proc/kcore does not have all of it"
            data += part
        for place in self._own:
            if low <= place and place + _CALL <= high:
                data[place - low : place - low + _CALL] = bytes(_CALL)
        return bytes(data)

    def text(self) -> bytes:
        return self.read(self.low, self.high)

    def pages(self, addresses: Iterable[int]) -> bytes:
        """Return the pages with these addresses."""
        numbers = sorted({address // PAGE for address in addresses})
        return b"".join(self.read(n * PAGE, n * PAGE + PAGE) for n in numbers)


@dataclass
class Recorded:
    """A recorded trace.

    Attributes:
        pages: of scratch, by number.
        counters: where its code counts, and how much of it.
        times: seconds that planting took, then unplanting.
    """

    address: int = 0
    size: int = 0
    counters: tuple[int, int] = (0, 0)
    pages: dict[int, bytes] = field(default_factory=dict)
    seals: list[tuple[int, int]] = field(default_factory=list)
    sites: Sequence[LivePatch] = ()
    exits: Sequence[LivePatch] = ()
    handler: int = 0
    active: int = 0
    times: list[float] = field(default_factory=list)

    def again(
        self, told: Callable[[], object], patience: int, rest: float, rounds: int = 1 << 30
    ) -> list[tuple[float, float]]:
        """Open the device, call told(), and plant and unplant; return the seconds that each took.

        Args:
            rest: seconds between them.
        """
        device = Device()
        address, view = device.map_scratch(self.size)
        assert address == self.address, "scratch is elsewhere"
        if self.counters[1]:
            assert device.allocate_counters(self.counters[1]) == self.counters, (
                "counters are elsewhere"
            )
        told()
        for number, data in self.pages.items():
            view[number * PAGE : (number + 1) * PAGE] = data
        for offset, size in self.seals:
            device.seal(offset, size)
        taken = []
        for _ in range(rounds):
            begun = time.monotonic()
            device.plant(self.sites, self.exits, self.handler, self.active, patience)
            planted = time.monotonic()
            time.sleep(rest)
            removing = time.monotonic()
            assert device.unplant() == 0, "sites are stuck"
            taken.append((planted - begun, time.monotonic() - removing))
            # Jumps out of its chains are now written in them: make them anew.
            if self.exits:
                break
        del view
        device.close()
        return taken


def recorded(here: kinst.Machine, program: str, command: str) -> Recorded:
    """Record the requests to the module for a program that runs as long as a command."""
    assert here._started is not None
    planter: Any = here._started.machine.target  # recording happens below the library's surface
    device, found = planter._device, Recorded()
    real = {name: getattr(device, name) for name in ("seal", "plant", "unplant")}

    def seal(offset: int, size: int) -> None:
        found.seals.append((offset, size))
        real["seal"](offset, size)

    def plant(
        sites: Sequence[LivePatch],
        exits: Sequence[LivePatch],
        handler: int,
        active: int,
        seconds: int,
    ) -> None:
        scratch = np.frombuffer(planter._view, np.uint8).reshape(-1, PAGE)
        used = np.flatnonzero(scratch.any(axis=1)).tolist()
        found.pages = {number: scratch[number].tobytes() for number in used}
        found.address, found.size = planter._scratch, scratch.size
        found.sites, found.exits, found.handler = sites, exits, handler
        found.active, found.counters = active, planter.counters
        begun = time.monotonic()
        real["plant"](sites, exits, handler, active, seconds)
        found.times.append(round(time.monotonic() - begun, 2))

    def unplant() -> int:
        begun = time.monotonic()
        left: int = real["unplant"]()
        found.times.append(round(time.monotonic() - begun, 2))
        return left

    device.seal, device.plant, device.unplant = seal, plant, unplant
    try:
        here.run(program, command)
    finally:
        del device.seal, device.plant, device.unplant
    return found


@contextmanager
def replayed(what: Recorded, patience: int = 20, rest: float = 0.0) -> Iterator[int]:
    """Run a process that has the device and plants and unplants again and again; yield its id.

    The process is dead at the end.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            while True:
                what.again(lambda: os.write(writing, b"x"), patience, rest)
        except BaseException as error:
            print(f"replay: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(writing)
    assert os.read(reading, 1), "it has not got the device"
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
