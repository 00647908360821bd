"""Requests to kinst's kernel module, through its device /dev/kinst.

module/kinst.h documents the structures; VERSION changes with them.

Tested by tests/machines/live/test_parts.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError, UnmappedError
from kinst.core.machine import LivePatch
from kinst.wire.memory import DeviceMemory

VERSION = 6
DEVICE = Path("/dev/kinst")
JUMP = 5  # bytes of the longest patch of a site
_NUMBER = Path("/sys/class/misc/kinst/dev")

_WRITE, _READ = 1, 2
_INFO = struct.Struct("<IIQQQQQ")
_MEMORY = struct.Struct("<QQQ")
_SCRATCH = struct.Struct("<QQ")
_PLANT = struct.Struct("<QQQQQQQII")
_TIMER = struct.Struct("<QQQII")
_WORD = struct.Struct("<Q")
_SITE = struct.Struct(f"<QB{JUMP}s{JUMP}s?4x")  # address, size, old, new, several

# Texts of enum kinst_why.
_WHY = {
    1: "its patch is no jump into scratch and no breakpoint",
    2: "no code of the kernel's, or of a module that is loaded, is there",
    3: "the kernel has changed it while the plan was made",
    4: "the kernel rewrites what is there, or a kprobe is there, or none may be",
    5: "no such instructions are there, or the jump of a kprobe lies over them",
    6: "the kernel's function tracer has begun to use its call site",
    7: "two patches overlap there",
}


def _command(number: int, direction: int, size: int) -> int:
    """Return the number of an ioctl(2) request, as _IOC() of include/uapi/asm-generic/ioctl.h does.

    Args:
        number: the module's number of the request.
        direction: _WRITE, _READ or both.
        size: bytes of the request's structure.
    """
    return direction << 30 | size << 16 | ord("k") << 8 | 0xF0 + number


@dataclass(frozen=True, slots=True)
class Info:
    """Facts about the kernel module and its kernel.

    Attributes:
        version: version of the module's requests.
        cpus: number of CPUs that are online.
        text: address of the kernel's text.
        scratch: address of scratch, 0 if there is none.
        scratch_size: bytes of scratch.
        planted: number of planted sites.
        stuck: number of sites that could not be restored, because another tracer's bytes are there.
    """

    version: int
    cpus: int
    text: int
    scratch: int
    scratch_size: int
    planted: int
    stuck: int


class Device:
    """Open device of kinst's kernel module; only one process at a time can have it open.

    Making this object opens the device, and raises TargetError if that fails.
    """

    def __init__(self) -> None:
        self._fd = -1
        try:
            fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TargetError(*_not_opened(error)) from error
        try:
            _check(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._scratch: DeviceMemory | None = None

    def info(self) -> Info:
        return Info(*_INFO.unpack(self._ask(0, _READ, bytes(_INFO.size))))

    def read(self, address: int, size: int) -> bytes:
        """Read kernel memory.  Raises UnmappedError if any of it is not mapped."""
        buffer = np.empty(size, np.uint8)
        try:
            self._ask(1, _WRITE, _MEMORY.pack(address, size, buffer.ctypes.data))
        except OSError as error:
            raise UnmappedError(f"{size} bytes at {address:#x} are not all mapped") from error
        return buffer.tobytes()

    def map_scratch(self, size: int) -> tuple[int, memoryview]:
        """Allocate scratch in the kernel; return its address there, and a view of it in this
        process.

        Raises TargetError if the kernel has no room in reach of its text.
        """
        try:
            answer = self._ask(2, _WRITE | _READ, _SCRATCH.pack(size, 0))
            self._scratch = DeviceMemory(self._fd, size)
        except OSError as error:
            raise TargetError(
                f"the kernel has no {size >> 20} MB for scratch in reach of its text:"
                f" {error.strerror}",
                "a smaller bufsize or aggsize needs less",
            ) from error
        return _SCRATCH.unpack(answer)[1], self._scratch.view()

    def seal(self, offset: int, size: int) -> None:
        """Make whole pages of scratch executable and read-only.  Raises TargetError.

        Args:
            offset: offset of the first page in scratch.
            size: bytes of the pages.
        """
        try:
            self._ask(3, _WRITE, _SCRATCH.pack(offset, size))
        except OSError as error:
            raise TargetError(f"scratch cannot be made executable: {error.strerror}") from error

    def plant(
        self,
        sites: Sequence[LivePatch],
        exits: Sequence[LivePatch],
        handler: int,
        active: int,
        seconds: int,
    ) -> None:
        """Plant all sites, or none.

        Args:
            sites: patches of at most JUMP bytes each.
            exits: patches of trampolines. The module writes them after it has restored all sites,
                so that threads leave chains.
            handler: address of the function that handles breakpoints; 0 without breakpoints.
            active: address of a u64 in scratch: 1 if clauses are turned on, 0 if they are turned
                off. If no request comes for `seconds`, the module sets it to 0 and then restores
                the sites.
            seconds: time without a request after which the module restores all sites.

        Raises TargetError.
        """
        table, leaving = _table(sites), _table(exits)
        data = bytearray(
            _PLANT.pack(
                len(sites), table.ctypes.data, len(exits), leaving.ctypes.data, handler, active,
                0, 0, seconds,
            )
        )  # fmt: skip
        try:
            fcntl.ioctl(self._fd, _command(4, _WRITE | _READ, _PLANT.size), data)
        except OSError as error:
            *_, failed, why, _ = _PLANT.unpack(data)
            if why in _WHY:
                message = f"nothing is planted, because of {failed:#x}: {_WHY[why]}"
                raise TargetError(
                    message,
                    "run kinst again, or leave this instruction out; a kprobe has to be removed",
                ) from error
            raise TargetError(f"nothing is planted: {error.strerror}") from error

    def start_timer(self, period: int, function: int, active: int, seconds: int) -> None:
        """Start a timer that calls a function in scratch periodically on each CPU.

        Args:
            period: period in ns.
            function: address of the function.
            active: address of a u64 in scratch: 1 if clauses are turned on, 0 if they are turned
                off. If no request comes for `seconds`, the module sets it to 0 and then
                stops the timers.
            seconds: time without a request after which the module stops all timers.

        Raises TargetError.
        """
        try:
            self._ask(7, _WRITE, _TIMER.pack(period, function, active, seconds, 0))
        except OSError as error:
            raise TargetError(
                f"no more timers can be started: {error.strerror}", "use fewer profile-N probes"
            ) from error

    def missed(self, timer: int) -> int:
        """Return how many calls of a timer's function were missed on all CPUs since start_timer().

        May be called after unplant(). Raises TargetError.

        Args:
            timer: the timer's number: 0 for the first start_timer(), and so on.
        """
        try:
            return int(_SCRATCH.unpack(self._ask(11, _WRITE | _READ, _SCRATCH.pack(timer, 0)))[1])
        except OSError as error:
            raise TargetError(f"missed samples cannot be counted: {error.strerror}") from error

    def allocate_counters(self, size: int) -> tuple[int, int]:
        """Allocate memory for counters on each CPU.

        Returns the displacement from the per-CPU base to this memory, and how many bytes each CPU
        has there. Returns (0, 0) if the kernel has no such memory.

        Args:
            size: bytes wanted on each CPU.
        """
        try:
            some, displacement = _SCRATCH.unpack(
                self._ask(8, _WRITE | _READ, _SCRATCH.pack(size, 0))
            )
        except OSError:
            return 0, 0
        return displacement - (displacement >> 63 << 64), some

    def gather(self, offset: int, size: int) -> None:
        """Copy the counters of all CPUs to scratch, one CPU after another.

        Args:
            offset: offset in scratch to which they are copied.
            size: bytes of each CPU's counters to copy.

        Raises TargetError.
        """
        try:
            self._ask(9, _WRITE, _SCRATCH.pack(offset, size))
        except OSError as error:
            raise TargetError(f"the counters cannot be read: {error.strerror}") from error

    def empty(self) -> None:
        """Wait until no thread executes in scratch, then make scratch writable and zero the
        counters.

        Raises TargetError.
        """
        try:
            fcntl.ioctl(self._fd, _command(10, 0, 0))
        except OSError as error:
            raise TargetError(f"scratch cannot be reused: {error.strerror}") from error

    def unplant(self) -> int:
        """Restore all sites, and return how many could not be restored.

        A site cannot be restored while another tracer's bytes lie over it. Raises TargetError.
        """
        try:
            return int(_WORD.unpack(self._ask(5, _READ, bytes(_WORD.size)))[0])
        except OSError as error:
            raise TargetError(
                f"the kernel's code could not be restored: {error.strerror}"
            ) from error

    def beat(self) -> bool:
        """Send a heartbeat to the module; return whether the module has restored all sites because
        no heartbeat came in time."""
        return bool(_WORD.unpack(self._ask(6, _READ, bytes(_WORD.size)))[0])

    def close(self) -> None:
        """Close the device, upon which the module restores all sites that are still planted."""
        if self._fd < 0:
            return
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
        os.close(self._fd)
        self._fd = -1

    def _ask(self, number: int, direction: int, data: bytes) -> bytes:
        buffer = bytearray(data)
        fcntl.ioctl(self._fd, _command(number, direction, len(data)), buffer)
        return bytes(buffer)


def _table(sites: Sequence[LivePatch]) -> npt.NDArray[np.uint8]:
    """Return patches as the table that the module expects: records of _SITE, sorted by address."""
    ordered = sorted(sites, key=lambda site: site.address)
    rows = (
        _SITE.pack(site.address, len(site.new), site.old, site.new, site.several)
        for site in ordered
    )
    return np.frombuffer(b"".join(rows) or bytes(1), np.uint8)


def _check(fd: int) -> None:
    """Raise TargetError if an open file is not the device of this version of the kernel module."""
    status = os.fstat(fd)
    try:
        number = _NUMBER.read_text().strip()
    except OSError:
        number = ""
    here = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    if not stat.S_ISCHR(status.st_mode) or number != here:
        raise TargetError(f"{DEVICE} is not the device of kinst's module", "remove it")
    try:
        data = bytearray(_INFO.size)
        fcntl.ioctl(fd, _command(0, _READ, _INFO.size), data)
        version = int(_INFO.unpack(data)[0])
    except OSError:
        version = 0
    if version != VERSION:
        raise TargetError(
            f"the loaded module is of another version of kinst: {version}, not {VERSION}",
            "rmmod kinst; where DKMS has built it, dkms remove kinst --all",
        )


def _holder() -> str:
    """Return the name and id of the process that has the device open, for a message.

    "another process" if this user cannot see it.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(one.readlink() == DEVICE for one in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return "another process"


def _not_opened(error: OSError) -> tuple[str, str]:
    if error.errno == errno.EBUSY:
        return f"{_holder()} has {DEVICE} open, and one at a time may", "end that one"
    if error.errno == errno.ETXTBSY:
        return (
            "sites of an earlier kinst are still held by a kprobe that was put over them",
            "remove that kprobe; the kernel's log names the first",
        )
    if error.errno in (errno.EPERM, errno.EACCES):
        return "--live is for root, with CAP_SYS_MODULE", "sudo kinst --live ..."
    return f"{DEVICE} cannot be opened: {error.strerror}", "is devtmpfs mounted on /dev?"
