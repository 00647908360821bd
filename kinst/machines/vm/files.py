"""Folders of the host that a guest can use, and the environment of commands that run in them.

One virtiofsd(1) for each folder serves it over a vhost-user socket. QEMU shows the folder to the
guest as a virtio device with a tag. guest_init.sh mounts the device. No socket has a file name:
kinst makes a socket that listens, and connects to it. virtiofsd inherits the listening socket. QEMU
gets the connection from kinst; it is the only one.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.wire.child_process import PLAIN_COMMAND, Child
from kinst.wire.qmp import OwnMonitor
from kinst.wire.sockets import connected_listener

# Folders of virtiofsd in Debian 12 (qemu-system-common), and of its rewrite in Debian 13 and
# others.
_PLACES = ("/usr/lib/qemu", "/usr/libexec", "/usr/lib")
_PACKAGES = "apt-get install qemu-system-common, or virtiofsd from Debian 13 on"
_MOST_FILES = 1_000_000
_DEVICE, _QUEUE = "vhost-user-fs-pci", 1024
ROOT = "root"  # tag of the folder that is the root of commands

# Modules that a kernel needs to mount the folders, unless they are built in.
MODULES = ("virtio_pci", "virtiofs", "overlay")


@dataclass(frozen=True, slots=True)
class Share:
    """Folder of the host that the guest can use.

    Attributes:
        tag: tag of its device, by which the guest mounts it.
        folder: its path on the host.
        at: path at which commands in the guest find the folder; "" for the folder that is their
            root.
    """

    tag: str
    folder: Path
    at: str = ""

    @property
    def writable(self) -> bool:
        return bool(self.at)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Working folder and environment of commands in a guest whose root is a folder of the host
    (--root).

    Attributes:
        folder: path of the working folder, below the commands' root.
        environment: values of the environment's variables, by name.
        root: path of the commands' root on the host.
    """

    folder: str
    environment: Mapping[str, str]
    root: Path = Path("/")

    def has_program(self, name: str) -> bool:
        """Return whether the first word of a command names the file of a program, rather than a
        command of the shell."""
        folders = [""] if "/" in name else self.environment.get("PATH", "").split(":")
        paths = [os.path.join(self.folder, folder, name) for folder in folders]
        files = [self.root / path.lstrip("/") for path in paths]
        return any(file.is_file() and os.access(file, os.X_OK) for file in files)


def shares(root: Path | None, writable: Sequence[Path]) -> tuple[Share, ...]:
    """Return the folders of the host that --root and --rw share with the guest.

    The paths at which commands find a folder of --rw depend on `root`. A folder below `root` has
    its path relative to `root`. Any other folder has the path that it has on the host.

    Args:
        root: the folder of --root, None without one.
        writable: the folders of --rw.
    """
    folders = [Share(ROOT, root)] if root is not None else []
    for number, folder in enumerate(writable):
        folders.append(Share(f"rw{number}", folder, f"/{_below(folder, root)}"))
    return tuple(folders)


def _below(folder: Path, root: Path | None) -> Path:
    if root is not None and folder.is_relative_to(root):
        return folder.relative_to(root)
    return folder.relative_to("/")


def surroundings(root: Path) -> Surroundings:
    """Return kinst's own environment and working folder, for commands whose root is `root`.

    If kinst's working folder is not in the root, the working folder is /.
    """
    here = Path.cwd()
    folder = f"/{here.relative_to(root)}" if here.is_relative_to(root) else "/"
    return Surroundings(folder, dict(os.environ), root)


def in_surroundings(command: str, around: Surroundings) -> str:
    """Return a shell script that sets the environment and the working folder, then runs a command.

    The script leaves out variables whose names are not valid in a shell (bash exports functions
    under such names).

    A simple command runs in the shell's own process, whose id is $target. The shell in the root
    that kinst makes does that by itself; dash(1) starts another process, and waits for it.
    """
    words = command.strip()
    if PLAIN_COMMAND.fullmatch(words) and around.has_program(words.split()[0]):
        command = f"exec {words}"
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(around.environment.items())
        if name.isidentifier() and name.isascii() and name not in ("PWD", "OLDPWD", "_")
    ]
    folder = shlex.quote(around.folder)
    return "\n".join([*lines, f"cd {folder} || exit", f"exec /bin/sh -c {shlex.quote(command)}"])


def slots(shared: Sequence[Share], kind: str) -> list[str]:
    """Return QEMU's arguments that add, for each folder, an empty PCI slot. plug() inserts the
    folder's device there.

    Args:
        kind: QEMU's name for a slot (Board.CARD_SLOT).
    """
    argv: list[str] = []
    for number, share in enumerate(shared):
        argv += ["-device", f"{kind},id=slot-{share.tag},chassis={number + 1}"]
    return argv


class FileServer:
    """Process virtiofsd that serves one folder of the host to a guest.

    Making this object starts the process, and raises TargetError if virtiofsd is missing or does
    not start.
    """

    def __init__(self, share: Share) -> None:
        self.share = share
        program = _find()
        self.socket, listening = connected_listener()
        with listening:
            try:
                self._messages = os.memfd_create("virtiofsd", os.MFD_CLOEXEC)
                argv = _command(program, share, listening.fileno())
                # Debian 12's virtiofsd drops its groups, which only root can do.
                self._child = Child(
                    argv, [listening.fileno()], self._messages, keeps_groups=os.geteuid() != 0
                )
            except BaseException:
                self.socket.close()
                raise

    def arguments(self) -> list[str]:
        """Return QEMU's arguments for a device that is present when QEMU starts.

        QEMU must inherit the file descriptor of `socket`.
        """
        tag = self.share.tag
        device = f"{_DEVICE},chardev=fs-{tag},tag={tag},queue-size={_QUEUE}"
        chardev = f"socket,id=fs-{tag},fd={self.socket.fileno()}"
        return ["-chardev", chardev, "-device", device]

    def plug(self, monitor: OwnMonitor) -> None:
        """Plug the folder's device into its slot of a running QEMU.  Raises TargetError."""
        tag = self.share.tag
        name = f"fs-{tag}"
        monitor.execute("getfd", {"fdname": name}, self.socket.fileno())
        inherited = {"type": "fd", "data": {"str": name}}
        socket = {"type": "socket", "data": {"addr": inherited, "server": False}}
        monitor.execute("chardev-add", {"id": name, "backend": socket})
        device = {"driver": _DEVICE, "chardev": name, "tag": tag, "queue-size": _QUEUE}
        monitor.execute("device_add", {**device, "bus": f"slot-{tag}"})

    def trouble(self) -> str:
        """Return why virtiofsd has ended; "" while it runs."""
        if not self._child.status():
            return ""
        lines = os.pread(self._messages, 1 << 16, 0).decode("utf-8", "replace").strip().splitlines()
        return f"virtiofsd ended: {lines[-1] if lines else 'without a word'}"

    def close(self) -> None:
        """End virtiofsd.  Must not be called twice."""
        self.socket.close()
        self._child.end()
        os.close(self._messages)


def _find() -> str:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
    program = shutil.which("virtiofsd", path=path)
    if program is None:
        raise TargetError("virtiofsd not found, which shows the guest the host's files", _PACKAGES)
    return program


def _command(program: str, share: Share, listening: int) -> list[str]:
    """Return the command line that starts virtiofsd for a folder.

    If the guest cannot write the folder, virtiofsd caches its contents and does not check them
    again. So the folder must not change while the guest runs. The sandbox is chroot, since the
    other kind of sandbox needs a mount point below the folder, and / has none.

    Args:
        listening: file descriptor of the listening socket.
    """
    most = min(_MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    cache = "auto" if share.writable else "always"
    argv = [
        program, f"--fd={listening}", "-f", f"--rlimit-nofile={most}", "-o",
        f"source={share.folder},sandbox=chroot,cache={cache},log_level=err",
    ]  # fmt: skip
    if os.geteuid() == 0:
        return argv
    # virtiofsd must be root: it is in a user namespace of its own, in which this user is root.
    unshare = shutil.which("unshare")
    if unshare is None:
        raise TargetError("unshare not found, without which only root can share folders",
                          "apt-get install util-linux")  # fmt: skip
    return [unshare, "--user", "--map-root-user", *argv]
