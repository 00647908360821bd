"""The initramfs of a guest: a cpio archive with busybox and kinst's own init.

The format is the "new ASCII" format of cpio(5): for each entry 110 bytes of hexadecimal header, the
name and the data, each padded to 4 bytes; the last entry is TRAILER!!!.

Source: Documentation/driver-api/early-userspace/buffer-format.rst.

Tested by tests/machines/test_gdb.py and tests/machines/vm/test_initramfs.py.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError

BESIDE = "/.kinst/init"

_INIT = Path(__file__).with_name("guest_init.sh")

_DIRECTORIES = ("bin", "dev", "etc", "lib/kinst", "mnt", "proc", "root", "run", "sys", "tmp", "var")

# Devices for programs that run before init mounts devtmpfs over /dev, and for kernels without
# devtmpfs.  Numbers: Documentation/admin-guide/devices.txt.
_DEVICES = {
    "dev/console": (5, 1),
    "dev/full": (1, 7),
    "dev/null": (1, 3),
    "dev/random": (1, 8),
    "dev/tty": (5, 0),
    "dev/ttyAMA0": (204, 64),
    "dev/ttyS0": (4, 64),
    "dev/ttyS1": (4, 65),
    "dev/ttyS2": (4, 66),
    "dev/ttyS3": (4, 67),
    "dev/urandom": (1, 9),
    "dev/zero": (1, 5),
}

_ETC = {
    "etc/passwd": b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": b"127.0.0.1 localhost kinst\n",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file, folder or device in the archive.

    Attributes:
        name: path without the leading slash.
        mode: type and permission bits, as in st_mode.
        data: contents of a file.
        device: major and minor number of a device.
    """

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def build(busybox: Path, files: Mapping[str, Path], modules: Sequence[Path] = ()) -> bytes:
    """Return the uncompressed initramfs of a guest. Equal files give byte for byte equal archives.

    Args:
        busybox: a statically linked busybox for the guest's ISA.
        files: files of the host, by their absolute path in the guest. A file that is executable on
            the host is executable in the guest.
        modules: kernel modules, which init loads in this order before it says `ready`.

    Raises KinstError if a file cannot be read or a guest path is not absolute.
    """
    contents = {
        "init": _Entry("init", stat.S_IFREG | 0o755, _read(_INIT)),
        "bin/busybox": _Entry("bin/busybox", stat.S_IFREG | 0o755, _read(busybox)),
    }
    for name, data in _ETC.items():
        contents[name] = _Entry(name, stat.S_IFREG | 0o644, data)
    for number, module in enumerate(modules):
        # init loads modules in the order in which the shell sorts their names.
        name = f"lib/kinst/{number:03}-{module.name}"
        contents[name] = _Entry(name, stat.S_IFREG | 0o644, _read(module))
    for guest, host in files.items():
        name = _guest_name(guest)
        permission = 0o755 if _read_mode(host) & 0o111 else 0o644
        contents[name] = _Entry(name, stat.S_IFREG | permission, _read(host))
    return _newc([*_directories(contents), *_devices(), *contents.values()])


class Initramfs:
    """The archives that Linux unpacks as its first file system. Implements core.boot.GuestFiles."""

    def build(
        self, busybox: Path, files: Mapping[str, Path], modules: Sequence[Path] = ()
    ) -> bytes:
        return build(busybox, files, modules)

    def beside(self, initrd: bytes, busybox: Path) -> bytes:
        return beside(initrd, busybox)

    def starting_beside(self, append: str) -> str:
        """Add parameters to a kernel command line, so that the kernel starts kinst's helper (see
        beside()) instead of the init that the command line names. The helper then starts this init.

        Args:
            append: kernel command line of a guest with the user's initrd.
        """
        inits = [word for word in append.split() if word.startswith("rdinit=")]
        user_init = inits[-1].removeprefix("rdinit=") if inits else "/init"
        return f"{append} rdinit={BESIDE} kinst_init={user_init}".strip()


def beside(initrd: bytes, busybox: Path) -> bytes:
    """Return the user's initrd followed by an archive with kinst's helper. The kernel unpacks both
    into the same file system.

    The helper is a script (guest_init.sh, at the path BESIDE) with its own busybox. It starts the
    user's init as process 1, and runs traced commands at the same time.

    Args:
        initrd: the user's archive, compressed or not.
        busybox: a statically linked busybox for the guest's ISA.

    Raises KinstError if busybox cannot be read.
    """
    script = _read(_INIT).replace(b"#!/bin/busybox", b"#!/.kinst/busybox", 1)
    folders = [_Entry(name, stat.S_IFDIR | 0o755) for name in (".kinst", ".kinst/dev")]
    devices = [replace(one, name=f".kinst/{one.name}") for one in _devices()]
    files = [
        _Entry(BESIDE.lstrip("/"), stat.S_IFREG | 0o755, script),
        _Entry(".kinst/busybox", stat.S_IFREG | 0o755, _read(busybox)),
    ]
    # The second archive starts at a multiple of 4 bytes.
    return initrd + bytes(-len(initrd) % 4) + _newc([*folders, *devices, *files])


def _directories(contents: Mapping[str, _Entry]) -> Iterator[_Entry]:
    """Yield an entry for each folder that the archive needs, parents first: the kernel makes no
    folders by itself."""
    wanted = {PurePosixPath(name) for name in _DIRECTORIES}
    for path in [*wanted, *map(PurePosixPath, contents)]:
        wanted.update(path.parents)
    wanted.discard(PurePosixPath("."))
    for path in sorted(wanted):
        permission = 0o1777 if path.name == "tmp" else 0o755
        yield _Entry(str(path), stat.S_IFDIR | permission)


def _devices() -> Iterator[_Entry]:
    for name, number in _DEVICES.items():
        yield _Entry(name, stat.S_IFCHR | 0o666, device=number)


def _guest_name(path: str) -> str:
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or pure == PurePosixPath("/"):
        raise KinstError(f"not a path of a file in the guest: {path!r}", "it starts with /")
    return str(pure.relative_to("/"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KinstError(f"cannot read {path} for the guest: {error.strerror}") from error


def _read_mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError as error:
        raise KinstError(f"cannot read {path} for the guest: {error.strerror}") from error


def _newc(entries: Sequence[_Entry]) -> bytes:
    archive = bytearray()
    # Inode numbers only have to differ.  Times and owners are 0, so that archives are reproducible.
    for inode, entry in enumerate([*entries, _Entry("TRAILER!!!", 0)], start=1):
        name = entry.name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(entry.mode) else 1
        fields = (
            inode, entry.mode, 0, 0, links, 0, len(entry.data),
            0, 0, *entry.device, len(name), 0,
        )  # fmt: skip
        archive += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        archive += bytes(-len(archive) % 4)
        archive += entry.data
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
