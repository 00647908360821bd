"""Checks of test_under_kvm.py that run as root in a guest whose processor has SVM: kinst there has
a /dev/kvm, and traces guests of its own under KVM.

kvm_in_guest.py MODULE READS CHECK...: each check prints a line of JSON, [its name, its result,
seconds].  All checks run in one process, because starting kinst takes such a guest a minute.

MODULE is rig_module/rig.c, without which the emulated processor finds no hardware breakpoint.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import kinst
from kinst.core.options import MachineOptions
from kinst.core.paths import cache_folder
from kinst.events import Lost, Record
from kinst.isa import load
from kinst.kernels.fetch import Prepared, prepared
from kinst.machines.attach.monitor import Monitor
from kinst.machines.vm.opening import describe_host
from kinst.systems.linux.guest.initramfs import build
from kinst.wire.kernel_module import load_module

MODULE, READS = Path(sys.argv[1]), Path(sys.argv[2])
# What a boot in the emulated processor can do without.
APPEND = "quiet nokaslr"
MANY, FEW = 2000, 10  # reads, and reads that stop the machine at each hit
BOOT_SECONDS = 400.0
KILLS = int(os.environ.get("KINST_TEST_KILLS", "20"))
SLEEP = 5  # seconds
# Functions that kinst changes for EVERY: those of the probes, and of breakpoints.
CHANGED = ("vfs_read", "exc_int3")
# Physical address 0 of a kernel that KASLR has not moved; bytes to compare of each function.
LINKED, PAGE = 0xFFFF_FFFF_8000_0000, 4096
OWN = '/execname == "reads"/'
EVERY = f"kinst::vfs_read: {OWN} {{ @[probename] = count(); }}"
FIRST = f"kinst::vfs_read:0 {OWN} {{ @[probename] = count(); }}"
BEGUN = ' tick-500ms { printf("begun"); }'
# (how the sites are planted, program, reads)
WAYS = (
    ("auto", EVERY, MANY), ("jump", EVERY, MANY), ("trap", EVERY, MANY), ("stop", FIRST, FEW),
)  # fmt: skip
INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
mount -t proc proc /proc
stty -F /dev/ttyS0 -echo
while true; do setsid sh </dev/ttyS0 >/dev/ttyS0 2>&1; sleep 1; done
"""
UP = "Enter 'help'"  # what the shell says first


@cache
def kernel() -> Prepared:
    found = prepared("amd64")
    assert found is not None
    return found


def counted(result: Any) -> list[list[Any]]:
    return sorted([str(name), count] for (name,), count in result.items())


def boot() -> object:
    """Trace two guests that kinst boots, the second from the state of the first.

    Returns what kinst says about KVM before and after; the counts of each way; of each guest what
    its kernel printed when it had booted (with the time since it began), and its clock and kinst's;
    and messages.
    """
    messages: list[str] = []
    before = describe_host(load("amd64"), MachineOptions(), cache_folder())
    counts, boots = {}, []
    for ways in (WAYS, WAYS[:1]):  # the second guest continues from the state of the first
        with kinst.boot(
            accel="kvm", append=APPEND, cpus=1, memory="256m", copies=[READS],
            on_message=messages.append,
        ) as machine:  # fmt: skip
            boots.append(machine.execute("dmesg | grep 'Run /init'; date +%s").output.decode())
            boots[-1] += str(round(time.time()))
            for way, program, reads in ways:
                found = machine.run(program, f"reads {reads}", options={"plant": way})
                name = "warm" if way in counts else way
                counts[name] = [reads, counted(found.aggregations[""]), len(found.lost)]
    after = describe_host(load("amd64"), MachineOptions(), cache_folder())
    told = [text for text in messages if "cannot be planted" not in text]
    return {"before": before, "after": after, "counts": counts, "boots": boots, "told": told}


class Plain:
    """A guest that plain QEMU runs under KVM, with a shell on its console.

    Attributes:
        pid: of QEMU.
    """

    def __init__(self, folder: Path, cpus: int, append: str) -> None:
        self._folder, self._log = folder, folder / "log"
        init, initrd = folder / "init", folder / "initrd"
        init.write_text(INIT)
        init.chmod(0o755)
        initrd.write_bytes(build(kernel().busybox, {"/e2e-init": init, "/bin/reads": READS}))
        argv = f"""qemu-system-x86_64 -machine q35 -accel kvm -cpu host -nodefaults -display none
            -no-reboot -m 256 -smp {cpus} -kernel {kernel().kernel} -initrd {initrd} -serial
            chardev:c -chardev socket,id=c,path={folder}/c,server=on,wait=off,logfile={self._log}
            -gdb unix:{folder}/gdb,server=on,wait=off
            -qmp unix:{folder}/qmp,server=on,wait=off""".split()
        line = f"console=ttyS0 {APPEND} rdinit=/e2e-init no_timer_check cryptomgr.notests {append}"
        self._qemu = subprocess.Popen([*argv, "-append", line])
        self.pid = self._qemu.pid
        end = time.monotonic() + BOOT_SECONDS
        while not (self._log.exists() and UP in self._log.read_text(errors="replace")):
            assert self._qemu.poll() is None, "QEMU ended"
            assert time.monotonic() < end, f"not up: {self.said()}"
            time.sleep(0.2)
        self._shell = socket.socket(socket.AF_UNIX)
        self._shell.settimeout(BOOT_SECONDS)
        self._shell.connect(str(folder / "c"))
        self._shell.sendall(b"stty -echo; exec env PS1= PS2= sh\n")
        self._marks = 0
        self.run("true")

    def said(self) -> str:
        """Return the end of what the guest's kernel and shell have printed."""
        return self._log.read_text(errors="replace")[-600:] if self._log.exists() else ""

    def run(self, command: str) -> str:
        """Return the end of the output of a command in the guest's shell."""
        self._marks += 1
        mark = f"mark{self._marks}."
        self._shell.sendall(f"{command}; echo ma''{mark[2:]}\n".encode())
        heard = b""
        while f"{mark}\r\n".encode() not in heard:
            more = self._shell.recv(1 << 16)
            assert more, "QEMU ended"
            heard += more
        lines = heard.decode(errors="replace").replace("\r", "").splitlines()
        return "\n".join(line for line in lines[-4:] if "ma''rk" not in line and mark not in line)

    def text(self) -> dict[str, bytes]:
        """Return the bytes of functions that kinst changes, as QEMU's monitor has them in RAM."""
        lines = self.run(f"grep -wE '{'|'.join(CHANGED)}' /proc/kallsyms").splitlines()
        saved = self._folder / "saved"
        found = {}
        with Monitor(str(self._folder / "qmp")) as monitor:
            for address, _, name in map(str.split, lines):
                place = {"val": int(address, 16) - LINKED, "size": PAGE, "filename": str(saved)}
                monitor.execute("pmemsave", place)
                found[name] = saved.read_bytes()
        assert set(found) == {*CHANGED}, lines
        return found

    def close(self) -> None:
        self._qemu.kill()
        self._qemu.wait()


@contextmanager
def plain(cpus: int = 1, append: str = "") -> Iterator[Plain]:
    with tempfile.TemporaryDirectory() as folder:
        guest = Plain(Path(folder), cpus, append)
        try:
            yield guest
        finally:
            guest.close()


def traced(machine: Any, guest: Plain, way: str, program: str, reads: int) -> list[Any]:
    """Count what `reads` reads of the guest do; the guest begins once all probes are planted.

    Returns the number of reads, the counts, and the number of firings that were lost; ticks, which
    an emulated processor is too slow for, are left out.
    """
    trace = machine.trace(program + BEGUN, options={"plant": way, "quiet": True})
    begun = threading.Event()
    errors: list[BaseException] = []
    lost: list[Lost] = []

    def pull() -> None:
        try:
            for event in trace:
                if isinstance(event, Record):
                    begun.set()
                elif isinstance(event, Lost) and event.kind != "timer":
                    lost.append(event)
        except BaseException as error:
            errors.append(error)
            begun.set()

    thread = threading.Thread(target=pull)
    thread.start()
    begun.wait(BOOT_SECONDS)
    if not errors:
        guest.run(f"reads {reads}")
    trace.stop()
    thread.join()
    if errors:
        raise errors[0]
    found = counted(trace.aggregations()[""])
    trace.close()
    return [reads, found, len(lost)]


def attached(cpus: int, append: str, ways: Sequence[tuple[str, str, int]]) -> object:
    """Trace a guest that plain QEMU runs, and see that it runs on afterwards."""
    with plain(cpus, append) as guest:
        counts = {}
        with kinst.attach(machine=guest.pid, kernel=kernel().debug) as machine:
            for way, program, reads in ways:
                counts[way] = traced(machine, guest, way, program, reads)
        return {"counts": counts, "runs on": guest.run(f"reads {FEW}"), "said": guest.said()}


def killed() -> object:
    """Kill kinst with SIGKILL while it attaches, plans, traces, or ends, KILLS times.

    Returns in how many of these times the guest ran on with its text as before, and the moments in
    seconds.
    """
    draw = random.Random(os.environ.get("KINST_TEST_SEED", "1"))
    with plain() as guest:
        before, moments, good = guest.text(), [], 0

        def trace() -> None:
            os.setsid()
            with kinst.attach(machine=guest.pid, kernel=kernel().debug) as machine:
                machine.run(EVERY, seconds=5.0)

        def ended(session: int) -> bool:
            """Return whether kinst and its guardian have ended."""
            for folder in Path("/proc").iterdir():
                with suppress(OSError):
                    if folder.name.isdecimal():
                        fields = (folder / "stat").read_text().rpartition(")")[2].split()
                        if int(fields[3]) == session and fields[0] != "Z":
                            return False
            return True

        whole = 0.0
        for number in range(KILLS + 1):
            started = time.monotonic()
            child = os.fork()
            if not child:
                try:
                    trace()
                finally:
                    os._exit(0)
            if number:  # the first run shows how long one takes
                moments.append(round(draw.uniform(0.0, whole), 1))
                time.sleep(moments[-1])
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            while not ended(child):
                assert time.monotonic() < started + BOOT_SECONDS, "the guardian does not end"
                time.sleep(0.1)
            whole = whole or time.monotonic() - started
            good += f"reads {FEW} ns" in guest.run(f"reads {FEW}") and guest.text() == before
        return {"good": good, "of": KILLS + 1, "moments": sorted(moments)}


def timers() -> object:
    """Return what timers counted while a guest slept for SLEEP seconds, and how long a trace with a
    limit took.
    """
    options = {"quiet": True}
    program = "profile-97 { @p[cpu] = count(); } tick-1s { @t = count(); }"
    with kinst.boot(accel="kvm", append=APPEND, cpus=2, memory="256m") as machine:
        started = time.monotonic()
        found = machine.run(program, f"sleep {SLEEP}", options=options).aggregations
        took = time.monotonic() - started
        started = time.monotonic()
        limited = machine.run(program, "sleep 600", options=options, seconds=SLEEP)
        return {
            "profile": {cpu: count for (cpu,), count in found["p"].items()},
            "tick": found["t"][()],
            "took": took,
            "limited": time.monotonic() - started,
            "reason": limited.reason,
        }


def folders() -> object:
    """Trace (with -x batch) a guest with four CPUs whose command runs on this guest's files."""
    with kinst.boot(accel="kvm", append=APPEND, cpus=4, memory="512m", root="/") as machine:
        found = machine.run(EVERY, f"{READS} {MANY}", options={"batch": "600s", "quiet": True})
        cpus = machine.execute("nproc").output.decode()
    return {"rows": counted(found.aggregations[""]), "cpus": int(cpus)}


CHECKS: dict[str, Callable[[], object]] = {
    "folders": folders,
    "killed": killed,
    "timers": timers,
    "boot": boot,
    "attach": lambda: attached(1, "", WAYS),
    "attach to two CPUs": lambda: attached(2, "", WAYS),
    "attach with PTI": lambda: attached(1, "pti=on", WAYS),
}


def main() -> None:
    load_module(MODULE)
    for name in sys.argv[3:]:
        started = time.monotonic()
        try:
            result = CHECKS[name]()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        print(json.dumps([name, result, round(time.monotonic() - started, 1)]), flush=True)


if __name__ == "__main__":
    main()
