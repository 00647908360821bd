"""Access to another process of the host: its memory, its mappings, its command line and its
descriptors.

Only write() changes the process. Source: proc(5), process_vm_readv(2).

Tested by tests/wire/test_ptrace.py."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.words import PAGE

_PIECE = 16 << 20
# Bytes of x86's huge pages.  For hugetlbfs statvfs(3) says them; other file systems say less.
_HUGE = (2 << 20, 1 << 30)
_PAGE_TAKES_MEMORY = 62  # bits of a pagemap entry from here on: swapped (62), present (63)
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping of a process, from a line of /proc/PID/maps.

    Attributes:
        start: first address.
        end: address after the last byte.
        rights: permissions as the kernel writes them, such as "rw-p".
        offset: offset in the file of the byte at `start`.
        device: major and minor number of the file's device, in hexadecimal.
        inode: inode number of the file; 0 for anonymous memory.
        path: path of the file, or the kernel's name for the mapping, such as [heap].
    """

    start: int
    end: int
    rights: str
    offset: int
    device: str
    inode: int
    path: str

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def shared(self) -> bool:
        return self.rights[3:4] == "s"


def process_ids() -> list[int]:
    """Return the ids of all processes of the host, ascending."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


class OtherProcess:
    """Another process of the host, by its id. If the process has ended, methods raise TargetError,
    except those that say otherwise."""

    def __init__(self, pid: int) -> None:
        """Check that the process exists. Raises TargetError if it does not."""
        self.pid = pid
        self._memory = -1
        if not Path(f"/proc/{pid}").is_dir():
            raise TargetError(f"there is no process {pid}")

    def _text(self, name: str) -> str:
        try:
            return Path(f"/proc/{self.pid}/{name}").read_text("utf-8", "surrogateescape")
        except OSError as error:
            raise TargetError(f"process {self.pid}: {error.strerror}") from error

    @property
    def arguments(self) -> list[str]:
        """The process's command line, with the program's name first; [] for a process that has
        ended and whose parent has not waited for it yet (a zombie)."""
        return self._text("cmdline").split("\0")[:-1]

    @property
    def program(self) -> str:
        """The name of the process's program file, without folders; "" if it cannot be read, or if
        the process has ended."""
        try:
            path = os.readlink(f"/proc/{self.pid}/exe")
        except OSError:
            return ""
        return path.removesuffix(" (deleted)").rpartition("/")[2]

    @property
    def file(self) -> str:
        """A path at which the process's program can be opened. It is the program's own path or, if
        another file is there now, the path of the kernel's link to the program. Raises TargetError
        if the program is not readable."""
        link = f"/proc/{self.pid}/exe"
        try:
            path, there = os.readlink(link), os.stat(link)
        except OSError as error:
            raise TargetError(
                f"the program of process {self.pid} cannot be read: {error.strerror}", permitted()
            ) from error
        try:
            same = os.path.samestat(os.stat(path), there)
        except OSError:
            same = False
        return path if same else link

    @property
    def owner(self) -> int:
        """The effective user id of the process."""
        return next(
            int(line.split()[2]) for line in self._text("status").splitlines() if "Uid:" in line
        )

    @property
    def started(self) -> str:
        """When the process started, in clock ticks since the host's boot. Process id and start time
        together identify a process, because ids are used again."""
        return self._text("stat").rpartition(")")[2].split()[19]

    @property
    def tracer(self) -> int:
        """The id of the process that traces this process with ptrace(2), or 0."""
        status = self._text("status").splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("TracerPid:"))

    def busy(self) -> int:
        """Return how many nanoseconds all threads but the first have run, added up. In QEMU, the
        vCPUs are among these threads."""
        return sum(times[0] for thread, times in self._scheduled().items() if thread != self.pid)

    def waited(self) -> int:
        """Return how many nanoseconds all threads were ready to run and had to wait for a CPU,
        added up."""
        return sum(times[1] for times in self._scheduled().values())

    def _scheduled(self) -> dict[int, tuple[int, int]]:
        """Return (nanoseconds run, nanoseconds waited) of each thread, from
        /proc/PID/task/TID/schedstat."""
        found: dict[int, tuple[int, int]] = {}
        for name in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{name}/schedstat") as file:
                    ran, waited, _ = file.read().split()
            except OSError:
                continue
            found[int(name)] = int(ran), int(waited)
        return found

    def descriptors(self) -> dict[int, str]:
        """Return the process's file descriptors: a map from each number to what the descriptor
        refers to, such as a path or socket:[INODE]."""
        descriptors = {}
        folder = f"/proc/{self.pid}/fd"
        try:
            numbers = [int(name) for name in os.listdir(folder)]
        except OSError as error:
            raise TargetError(f"process {self.pid}: {error.strerror}", permitted()) from error
        for number in numbers:
            try:
                descriptors[number] = os.readlink(f"{folder}/{number}")
            except OSError:
                continue
        return descriptors

    def descriptor_of(self, mapping: Mapping) -> int | None:
        """Return a file descriptor of the process that refers to the file of a mapping; None if the
        process has none."""
        for number in self.descriptors():
            try:
                status = os.stat(f"/proc/{self.pid}/fd/{number}")
            except OSError:
                continue
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
            if (device, status.st_ino) == (mapping.device, mapping.inode):
                return number
        return None

    def page_size(self, mapping: Mapping) -> int:
        """Return the size of a mapping's pages in bytes: the size of a huge page if the mapped file
        is in a hugetlbfs, otherwise PAGE (4096)."""
        number = self.descriptor_of(mapping) if mapping.inode else None
        if number is None:
            return PAGE
        try:
            status = os.statvfs(f"/proc/{self.pid}/fd/{number}")
        except OSError as error:
            raise TargetError(f"process {self.pid}: {error.strerror}") from error
        return status.f_bsize if status.f_bsize in _HUGE else PAGE

    def mappings(self) -> list[Mapping]:
        """Return all mappings of the process, in address order."""
        mappings = []
        for line in self._text("maps").splitlines():
            span, rights, offset, device, inode, *path = line.split(maxsplit=5)
            start, _, end = span.partition("-")
            mappings.append(
                Mapping(
                    int(start, 16), int(end, 16), rights, int(offset, 16), device, int(inode),
                    "".join(path),
                )
            )  # fmt: skip
        return mappings

    def writable(self, least: int) -> list[tuple[int, int]]:
        """Return the address ranges [start, end) of readable and writable memory that have at least
        `least` bytes. Adjacent mappings are one range."""
        spans: list[tuple[int, int]] = []
        for mapping in self.mappings():
            if "rw" not in mapping.rights:
                continue
            if spans and spans[-1][1] == mapping.start:
                spans[-1] = (spans[-1][0], mapping.end)
            else:
                spans.append((mapping.start, mapping.end))
        return [(start, end) for start, end in spans if end - start >= least]

    # Memory.

    def resident(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the contents of the pages of [start, end) that exist in memory or swap, in address
        order, in pieces of at most 16 MB. Pages that do not exist are not read, since the kernel
        would then allocate them (proc(5), pagemap)."""
        with open(f"/proc/{self.pid}/pagemap", "rb", buffering=0) as pagemap:
            for low in range(start, end, _PIECE):
                pages = (min(end, low + _PIECE) - low) // PAGE
                pagemap.seek(low // PAGE * 8)
                entries = struct.unpack(f"<{pages}Q", pagemap.read(pages * 8))
                first: int | None = None
                for number, entry in enumerate((*entries, 0)):
                    if entry >> _PAGE_TAKES_MEMORY:
                        first = number if first is None else first
                    elif first is not None:
                        yield self.read(low + first * PAGE, (number - first) * PAGE)
                        first = None

    def open_memory(self) -> None:
        """Open the process's memory for read() and write(). If that is not permitted, raise a
        TargetError that says what would permit it."""
        if self._memory >= 0:
            return
        try:
            self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TargetError(
                f"the memory of process {self.pid} cannot be reached: {error.strerror}",
                permitted(),
            ) from error

    def fileno(self) -> int:
        """Return the file descriptor of the process's memory, which open_memory() has opened."""
        return self._memory

    def read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self._memory, size, address)
        except (OSError, OverflowError) as error:
            raise TargetError(f"process {self.pid} has no memory at {address:#x}") from error
        if len(data) != size:  # it crosses mappings of different kinds
            if not data:
                raise TargetError(f"process {self.pid} has no memory at {address:#x}")
            return data + self.read(address + len(data), size - len(data))
        return data

    def write(self, address: int, data: bytes) -> None:
        try:
            done = os.pwrite(self._memory, data, address)
        except (OSError, OverflowError) as error:
            raise TargetError(f"process {self.pid} has no memory at {address:#x}") from error
        if done != len(data):
            self.write(address + done, data[done:])

    def close(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def permitted() -> str:
    """Return a hint that says what would let kinst trace other processes of its user: ptrace(2),
    PTRACE_MODE_ATTACH."""
    try:
        scope = int(_SCOPE.read_text())
    except (OSError, ValueError):
        scope = 0
    if scope:
        return f"sysctl kernel.yama.ptrace_scope=0 (it is {scope}), or CAP_SYS_PTRACE"
    return "run kinst as that process' user, or with CAP_SYS_PTRACE"


def joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges [start, end) in ascending order, with adjacent ranges joined."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
