"""--live as a new user has it: from pip to the first record on a fresh Debian 12.

Debian has its own kernel, initrd, compiler and Python, but no debug package and no network.  Needs
root and debootstrap(8).  KINST_TEST_FRESH_DEBIAN names a folder in which the Debian is kept for
another run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import ROOT
from tests.vm.attach.attach_guest import AttachGuest
from tests.vm.debian_root import image_of, installed, log_in
from tools.live_guest import PROCESSOR

pytestmark = [pytest.mark.vm, pytest.mark.slow]
PACKAGES = ("linux-image-cloud-amd64", "linux-headers-cloud-amd64", "gcc", "make", "python3-venv")
BOOT_SECONDS = 300.0
READS = 5000
KINST = "/root/kinst/bin/kinst"


def debian(folder: Path) -> Path:
    """Return the system's folder, with wheels of kinst and its dependencies in /wheels."""
    root = folder / "root"
    if not (root / "wheels").exists():
        installed(root, PACKAGES)
        log_in(root)
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "-w", str(root / "wheels"))
    # From the lock, only what kinst itself needs.
    subprocess.run([*pip, "-c", "requirements.lock", "."], cwd=ROOT, check=True)
    return root


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttachGuest]:
    kept = os.environ.get("KINST_TEST_FRESH_DEBIAN")
    folder = tmp_path_factory.mktemp("fresh")
    root = debian(Path(kept) if kept else folder)
    image_of(root, folder / "disk", "5G")
    (kernel,), (initrd,) = root.glob("boot/vmlinuz-*"), root.glob("boot/initrd.img-*")
    argv = f"""qemu-system-x86_64 -machine q35 -cpu {PROCESSOR} -nodefaults -display none -no-reboot
        -m 3072 -smp 2 -kernel {kernel} -initrd {initrd}
        -drive file={folder}/disk,if=virtio,format=raw
        -chardev socket,id=con,path={folder}/console,server=on,wait=off,logfile={folder}/log
        -serial chardev:con""".split()
    with subprocess.Popen([*argv, "-append", "root=/dev/vda rw console=ttyS0 quiet"]) as qemu:
        try:
            log, end = folder / "log", time.monotonic() + BOOT_SECONDS
            while not log.exists() or "root@debian" not in log.read_text(errors="replace"):
                assert qemu.poll() is None, "QEMU ended"
                assert time.monotonic() < end, log.read_text(errors="replace")[-2000:]
                time.sleep(0.2)
            found = AttachGuest(qemu.pid, folder, Path())
            yield found
            found.close()
        finally:
            with suppress(ProcessLookupError):
                qemu.kill()


def timed(guest: AttachGuest, command: str) -> str:
    began = time.monotonic()
    said = guest.run(f"{command} 2>&1; echo ended with $?", seconds=1200.0)
    print(f"{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}: {command}\n{said}\n")
    return said


def test_from_pip_to_the_first_record(guest: AttachGuest) -> None:
    assert "6.1.0-" in guest.run("uname -r")
    assert guest.run("ls /usr/lib/debug/boot 2>/dev/null | wc -l") == "0"
    assert "ended with 0" in timed(guest, "python3 -m venv /root/kinst")
    install = "/root/kinst/bin/pip install -q --no-index --find-links /wheels kinst"
    assert "ended with 0" in timed(guest, install)
    program = "kinst::vfs_read:0 { @[execname] = count(); }"
    work = f"dd if=/dev/zero of=/dev/null bs=1 count={READS}"
    said = timed(guest, f"{KINST} --live -n '{program}' -c '{work}'")
    assert "ended with 0" in said
    (count,) = re.findall(r"^ +dd +(\d+)$", said, re.M)
    # Besides its own files it reads libraries' headers and lists of words.
    assert READS <= int(count) < READS + 50
    said = timed(guest, f"{KINST} --live -n 'kinst::vfs_read: {{ @ = count(); }}' -c '{work}'")
    assert "ended with 0" in said
    local = "kinst::vfs_read:0 { @ = sum(locals->count); }"
    said = timed(guest, f"{KINST} --live -n '{local}' -c true")
    assert "no debug information about local variables" in said and "ended with 1" in said
    log = guest.run("dmesg")
    assert not re.search(r"WARNING|BUG|Oops|Call Trace", log), log[-3000:]
