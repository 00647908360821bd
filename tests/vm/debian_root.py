"""A Debian root file system with systemd, as a disk image, made by debootstrap(8) on first use.

One of another instruction set is unpacked, not installed: its configuration (/etc) is that of this
machine's own, which is the same but for what no boot needs.  Root is logged in on the console.
"""

from __future__ import annotations

import os
import shutil
import subprocess
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
    """The image, ext4 without partitions.  Skips the test where there is no debootstrap, which only
    root can run."""
    made = cache_folder() / "tests" / f"debian-{SUITES[isa]}-{isa}.img"
    if made.exists():
        return made
    if not shutil.which("debootstrap") or os.geteuid():
        pytest.skip("debootstrap is not installed, or this is not root")
    made.parent.mkdir(parents=True, exist_ok=True)
    folder = _unpacked(isa)
    shutil.rmtree(folder / "var/cache/apt/archives", ignore_errors=True)
    (folder / "etc/hostname").write_text("debian\n")
    for name in ("passwd", "shadow"):
        path = folder / "etc" / name
        path.write_text(path.read_text().replace("root:x:", "root::").replace("root:*:", "root::"))
    _log_in(folder / "etc/systemd")
    partial = made.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(folder), str(partial), _SIZE)
    partial.rename(made)
    if isa != NATIVE:
        shutil.rmtree(folder)
    return made


def _log_in(systemd: Path) -> None:
    """On /dev/console, which needs no udev, as the serial ports' own service does."""
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
    """A folder with all packages of a minimal Debian."""
    folder = cache_folder() / "tests" / f"debian-{isa}"
    if (folder / "etc/shadow").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", "--include=systemd-sysv"]
    if isa == NATIVE:
        _run(*command, SUITES[isa], str(folder))
        return folder
    _run(*command, f"--arch={isa}", "--foreign", SUITES[isa], str(folder))
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
