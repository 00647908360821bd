"""A Linux guest with a shell on its serial line and accessible memory, without kinst's help.

Memory is read through the file of the guest's RAM, with a page walk of this module.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import selectors
import struct
import subprocess
import time
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.kernels.fetch import Prepared

MEGABYTES = 512
SECONDS = 240.0  # long enough for a busy machine; only a hang takes longer
INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
echo 'root:x:0:0::/:/bin/sh' > /etc/passwd
stty -F /dev/console -echo
echo guest ready >/dev/ttyS0
# No interactive shell: that one gives the terminal away to its background jobs.
while read -r line; do eval "$line"; done </dev/ttyS0 >/dev/ttyS0 2>&1
"""


# "now" prints the time-stamp counter before and after the clocks were read, and the clocks. "spin
# UID GID" makes a process with a thread that runs for ever, and names it in the first line.
HELPER = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>
static void *spin(void *v) {
    prctl(PR_SET_NAME, "kinst-spinner");
    printf("spinning %d %ld %d %d %d\n", getpid(), syscall(SYS_gettid), getppid(), getuid(),
           getgid());
    fflush(stdout);
    for (;;) __asm__ volatile("pause");
    return v;
}
int main(int n, char **a) {
    if (n == 4 && !strcmp(a[1], "spin")) {
        pthread_t t;
        if (setgid(atoi(a[3])) || setuid(atoi(a[2]))) return 1;
        pthread_create(&t, 0, spin, 0);
        pthread_join(t, 0);
    }
    unsigned long long first = 0, last = -1ULL;
    long long monotonic = 0, wall = 0;
    for (int k = 0; k < 1000; k++) {  /* the one in which the least came between */
        struct timespec m, r;
        unsigned long long before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC, &m);
        clock_gettime(CLOCK_REALTIME, &r);
        unsigned long long after = __rdtsc();
        if (after - before < last - first) {
            first = before, last = after;
            monotonic = m.tv_sec * 1000000000LL + m.tv_nsec;
            wall = r.tv_sec * 1000000000LL + r.tv_nsec;
        }
    }
    printf("%llu %llu %lld %lld\n", first, last, monotonic, wall);
    return 0;
}
"""


def archive(busybox: Path, helper: Path) -> bytes:
    """Return a newc cpio archive (cpio(5)) with busybox, INIT and the helper program."""
    files = [("bin", 0o40755, b""), ("sbin", 0o40755, b""), ("etc", 0o40755, b""),
             ("dev", 0o40755, b""), ("usr", 0o40755, b""), ("usr/bin", 0o40755, b""),
             ("usr/sbin", 0o40755, b""), ("bin/busybox", 0o100755, busybox.read_bytes()),
             ("bin/helper", 0o100755, helper.read_bytes()), ("init", 0o100755, INIT.encode()),
             ("TRAILER!!!", 0, b"")]  # fmt: skip
    out = bytearray()
    for number, (name, mode, data) in enumerate(files, 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


class Guest:
    """A booted kernel with a shell, and its memory."""

    def __init__(self, prepared: Prepared, folder: Path, append: str, cpus: int = 2) -> None:
        initrd = folder / "initrd"
        source, helper = folder / "helper.c", folder / "helper"
        source.write_text(HELPER)
        subprocess.run(["gcc", "-O1", "-static", "-pthread", "-o", str(helper), str(source)],
                       check=True)  # fmt: skip
        initrd.write_bytes(archive(prepared.busybox, helper))
        self.fd = os.memfd_create("guest")
        size = MEGABYTES << 20
        os.ftruncate(self.fd, size)
        self.ram = mmap.mmap(self.fd, size)
        command = [
            "qemu-system-x86_64", "-machine", "q35,accel=tcg,memory-backend=mem", "-cpu",
            "max,la57=off", "-smp", str(cpus), "-m", str(MEGABYTES), "-object",
            f"memory-backend-file,id=mem,size={MEGABYTES}M,mem-path=/proc/self/fd/{self.fd},share=on",
            "-kernel", str(prepared.kernel), "-initrd", str(initrd), "-append",
            # As kinst's own guests: a busy host must not make the kernel give up the TSC.
            f"console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check {append}",
            "-nographic", "-nodefaults", "-serial",
            "stdio", "-no-reboot", "-net", "none",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[self.fd], bufsize=0
        )
        assert self.process.stdout is not None
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.seen = b""

    def comes_up(self, seconds: float) -> bool:
        """Return whether its shell is there within so many seconds."""
        with contextlib.suppress(TimeoutError):
            self._until(b"guest ready", 0, seconds)
            return True
        return False

    def sh(self, command: str) -> str:
        """Run a command in the guest; return its output."""
        assert self.process.stdin is not None
        marker = f"@{time.monotonic_ns()}@"
        # Split in the command line, so that an echoed line is not taken for the answer.
        start = len(self.seen)
        with contextlib.suppress(BrokenPipeError):  # then the output has ended, and tells why
            self.process.stdin.write(f"{command}\necho {marker[:4]}''{marker[4:]}\n".encode())
        self._until(marker.encode() + b"\r\n", start, SECONDS)
        text = self.seen[start:].decode("latin-1").replace("\r\n", "\n")
        return text[: text.index(marker)]

    def _until(self, wanted: bytes, start: int, timeout: float) -> None:
        assert self.process.stdout is not None
        end = time.monotonic() + timeout
        while wanted not in self.seen[start:]:
            if not self.selector.select(max(0, end - time.monotonic())):
                raise TimeoutError(f"no {wanted!r}: {self.seen[start:][-2000:]!r}")
            data = self.process.stdout.read(65536)
            if not data:
                raise EOFError(f"QEMU ended: {self.seen[-2000:]!r}")
            self.seen += data

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.ram.close()
        os.close(self.fd)

    def symbols(self, names: str) -> dict[str, int]:
        """Return /proc/kallsyms of the kernel proper: names that match a grep -E pattern."""
        shown = self.sh(f"grep -E ' [tTdDbBrR] ({names})$' /proc/kallsyms")
        rows = (line.split() for line in shown.splitlines())
        return {words[2]: int(words[0], 16) for words in rows if len(words) == 3}

    def map_kernel(self, text: int, tables: int) -> None:
        """Record the running addresses of _text and init_top_pgt; the guest reports their physical
        address."""
        found = re.search(r"([0-9a-f]+)-[0-9a-f]+ : Kernel code", self.sh("cat /proc/iomem"))
        assert found
        self.root = int(found[1], 16) + tables - text

    def physical(self, address: int) -> int:
        """Walk 4-level page tables (Intel SDM vol. 3, 4.5)."""
        table = self.root
        for shift in (39, 30, 21, 12):
            at = table + (address >> shift & 511) * 8
            (entry,) = struct.unpack_from("<Q", self.ram, at)
            if not entry & 1:
                raise KinstError(f"nothing is mapped at {address:#x}")
            table = entry & 0x000FFFFFFFFFF000
            if shift == 12 or (shift < 39 and entry & 0x80):
                return table & -(1 << shift) | address & (1 << shift) - 1
        raise AssertionError

    def read(self, address: int, size: int) -> bytes:
        out = b""
        while len(out) < size:
            at = self.physical(address + len(out))
            step = min(size - len(out), 4096 - (at & 4095))
            out += self.ram[at : at + step]
        return out

    def write(self, address: int, data: bytes) -> None:
        at = self.physical(address)
        self.ram[at : at + len(data)] = data
