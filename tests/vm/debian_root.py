"""A Debian root file system with systemd, as a disk image, made by debootstrap(8) on first use.

For another instruction set than this machine's, packages are unpacked, not installed; their
configuration (/etc) is copied from this machine's own image, which differs only in details that no
boot needs.  Root is logged in on the console.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinst.core.paths import cache_folder

NATIVE = "amd64"
SUITES = {"amd64": "bookworm", "arm64": "bookworm", "riscv64": "trixie"}
_SIZE = "1G"
_LOGIN = """[Service]
ExecStart=
ExecStart=-/sbin/agetty --autologin root --noclear --keep-baud console 115200 dumb
"""


def debian_image(isa: str) -> Path:
    """Return the image, ext4 without partitions.  Skip the test if there is no debootstrap, which
    only root can run."""
    made = cache_folder() / "tests" / f"debian-{SUITES[isa]}-{isa}.img"
    if made.exists():
        return made
    if not shutil.which("debootstrap") or os.geteuid():
        pytest.skip("debootstrap is not installed, or this is not root")
    made.parent.mkdir(parents=True, exist_ok=True)
    folder = _unpacked(isa)
    log_in(folder)
    partial = made.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    image_of(folder, partial, _SIZE)
    partial.rename(made)
    if isa != NATIVE:
        shutil.rmtree(folder)
    return made


def installed(folder: Path, packages: Sequence[str]) -> None:
    """Install a minimal Debian of this machine's instruction set, with these packages, in a new
    folder."""
    include = ",".join(("systemd-sysv", *packages))
    _run("debootstrap", "--variant=minbase", f"--include={include}", SUITES[NATIVE], str(folder))


def image_of(folder: Path, image: Path, size: str) -> None:
    """Return an ext4 image of this size ("1G") with a folder's files, without apt's caches."""
    shutil.rmtree(folder / "var/cache/apt/archives", ignore_errors=True)
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(folder), str(image), size)


def log_in(folder: Path) -> None:
    """Log root in on /dev/console, which needs no udev, as the service of the serial ports
    does."""
    (folder / "etc/hostname").write_text("debian\n")
    for name in ("passwd", "shadow"):
        path = folder / "etc" / name
        path.write_text(path.read_text().replace("root:x:", "root::").replace("root:*:", "root::"))
    systemd = folder / "etc/systemd"
    login = systemd / "system/console-getty.service.d/login.conf"
    wanted = systemd / "system/getty.target.wants/console-getty.service"
    generator = systemd / "system-generators/systemd-getty-generator"
    for path in (login, wanted, generator):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    login.write_text(_LOGIN)
    wanted.symlink_to("/lib/systemd/system/console-getty.service")
    generator.symlink_to("/dev/null")


def _unpacked(isa: str) -> Path:
    """Unpack all packages of a minimal Debian into a folder, and return it."""
    folder = cache_folder() / "tests" / f"debian-{isa}"
    if (folder / "etc/shadow").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    if isa == NATIVE:
        installed(folder, ())
        return folder
    options = ["--variant=minbase", "--include=systemd-sysv", f"--arch={isa}", "--foreign"]
    _run("debootstrap", *options, SUITES[isa], str(folder))
    for package in sorted((folder / "var/cache/apt/archives").glob("*.deb")):
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
        ) as tar:
            unpack = ["tar", "x", "-C", str(folder), "--keep-directory-symlink"]
            subprocess.run(unpack, stdin=tar.stdout, check=True)
    proc = folder / "proc"
    if proc.is_symlink():  # debootstrap's, in a container
        proc.unlink()
        proc.mkdir()
    debian_image(NATIVE)
    shutil.rmtree(folder / "etc")
    shutil.copytree(_unpacked(NATIVE) / "etc", folder / "etc", symlinks=True)
    return folder


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
