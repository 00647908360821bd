"""Checks of test_under_kvm.py that run as root in a guest whose processor has SVM (rig.py): kinst
there has a /dev/kvm, and traces guests of its own under KVM.

kvm_in_guest.py MODULE READS FOLDER: makes the checks that files of the folder ask for, until the
folder has the file "end".  Each check has a process of its own, which is forked from this one:
starting kinst anew takes such a guest a minute.

MODULE is rig_module/rig.c, without which the emulated processor finds no hardware breakpoint.
"""

from __future__ import annotations

import ctypes
import faulthandler
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
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import kinst
from kinst.cli import command
from kinst.core.options import MachineOptions
from kinst.core.paths import cache_folder
from kinst.events import Lost, Record
from kinst.isa import load
from kinst.kernels.fetch import Prepared, prepared
from kinst.machines.attach.monitor import Monitor
from kinst.machines.vm import machine as vm_machine
from kinst.machines.vm.opening import describe_host
from kinst.systems.linux.guest.initramfs import build
from kinst.wire.kernel_module import load_module
from tests import ROOT
from tests.vm.kvm.rig import ALIVE, ANSWERED, ASKED, END, PREPARE, READY, SHOW

MODULE, READS, FOLDER = map(Path, sys.argv[1:4])
# What a boot in the emulated processor can do without.
APPEND = "quiet nokaslr"
MANY, FEW = 2000, 10  # reads, and reads that stop the machine at each hit
BOOT_SECONDS, LIVE_SECONDS = 900.0, 1800.0
KILLS = int(os.environ.get("KINST_TEST_KILLS", "20"))
SLEEP = 5  # seconds
# Physical address 0 of a kernel that KASLR has not moved.
LINKED = 0xFFFF_FFFF_8000_0000
SET_CHILD_SUBREAPER = 36  # prctl(2)
OWN = '/execname == "reads"/'
EVERY = f"kinst::vfs_read: {OWN} {{ @[probename] = count(); }}"
FIRST = f"kinst::vfs_read:0 {OWN} {{ @[probename] = count(); }}"
BEGUN = ' tick-500ms { printf("begun"); }'
TIMED = """
    BEGIN { printf("begun %d\\n", walltimestamp); }
    profile-97 { @profile[cpu] = count(); @first = min(walltimestamp); @last = max(walltimestamp); }
    tick-1s { @tick = count(); }
    END {
        printf("ended %d\\n", walltimestamp);
        printa("profile-97 %d %@d\\n", @profile);
        printa("tick-1s %@d\\n", @tick);
        printa("first %@d\\n", @first);
        printa("last %@d\\n", @last);
    }
"""
# (how the sites are planted, program, reads)
WAYS = (
    ("auto", EVERY, MANY), ("jump", EVERY, MANY), ("trap", EVERY, MANY), ("stop", FIRST, FEW),
)  # fmt: skip
# Options of the traces of two guests at the same time.
TWO = ({"plant": "no-chain"}, {"plant": "trap", "batch": "600s"})
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
        stub: path of the socket of QEMU's GDB stub.
        cpus: number of CPUs.
    """

    def __init__(self, folder: Path, cpus: int, append: str) -> None:
        self._folder, self._log, self.stub = folder, folder / "log", folder / "gdb"
        self.cpus = cpus
        init, initrd = folder / "init", folder / "initrd"
        init.write_text(INIT)
        init.chmod(0o755)
        initrd.write_bytes(build(kernel().busybox, {"/e2e-init": init, "/bin/reads": READS}))
        argv = f"""qemu-system-x86_64 -machine q35 -accel kvm -cpu host -nodefaults -display none
            -no-reboot -m 256 -smp {cpus} -kernel {kernel().kernel} -initrd {initrd} -serial
            chardev:c -chardev socket,id=c,path={folder}/c,server=on,wait=off,logfile={self._log}
            -gdb unix:{self.stub},server=on,wait=off
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
        lines = self.run("grep -wE '_stext|_etext' /proc/kallsyms").splitlines()
        self._text = sorted(int(line.split()[0], 16) for line in lines)
        assert len(self._text) == 2, lines

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

    def read(self, reads: int) -> int:
        """Run the program `reads` on all CPUs at the same time; return how many reads they all
        make.
        """
        told = self.run(f"{f'reads {reads} & ' * (self.cpus - 1)}reads {reads}; wait")
        assert f"reads {reads} ns" in told, told
        return reads * self.cpus

    def text(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes of the kernel's text, as QEMU's monitor has them in RAM."""
        start, end = self._text
        saved = self._folder / "saved"
        with Monitor(str(self._folder / "qmp")) as monitor:
            place = {"val": start - LINKED, "size": end - start, "filename": str(saved)}
            monitor.execute("pmemsave", place)
        return np.fromfile(saved, np.uint8)

    def changed(self, before: np.ndarray[Any, np.dtype[np.uint8]]) -> list[str]:
        """Return addresses, at most nine, of bytes of the kernel's text that differ from before."""
        places = np.flatnonzero(self.text() != before)[:9].tolist()
        return [f"{self._text[0] + at:#x}" for at in places]

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
    """Count what `reads` reads of the guest on each CPU do; the guest begins once all probes are
    planted.

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
    made = 0 if errors else guest.read(reads)
    trace.stop()
    thread.join()
    if errors:
        raise errors[0]
    found = counted(trace.aggregations()[""])
    trace.close()
    return [made, found, len(lost)]


def attached(cpus: str, append: str, chosen: str) -> object:
    """Trace a guest that plain QEMU runs, by each of the chosen ways; see that it runs on, with its
    text as before.
    """
    with plain(int(cpus), append) as guest:
        before, counts = guest.text(), {}
        with kinst.attach(machine=guest.pid, kernel=kernel().debug) as machine:
            for way, program, reads in WAYS:
                if way in chosen.split():
                    counts[way] = traced(machine, guest, way, program, reads)
        return {"counts": counts, **after(guest), "changed": guest.changed(before)}


def stub() -> object:
    """Trace a guest that plain QEMU runs, by its GDB stub alone."""
    with plain(2, "pti=on") as guest:
        before = guest.text()
        with kinst.attach(str(guest.stub), kernel=kernel().debug) as machine:
            counts = {"stop": traced(machine, guest, "stop", FIRST, FEW)}
        return {"counts": counts, **after(guest), "changed": guest.changed(before)}


def after(guest: Plain) -> dict[str, Any]:
    """Return what a guest that has been traced answers: how many CPUs it has, whether its page
    tables are isolated, and the output of some reads.
    """
    return {
        "cpus": int(guest.run("nproc")),
        "pti": guest.run("grep -c -w pti /proc/cpuinfo") != "0",
        "runs on": guest.run(f"reads {FEW}"),
        "said": guest.said(),
    }


def children() -> list[int]:
    """Return the processes whose parent is this process."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(folder.name))
    return found


@dataclass(frozen=True)
class Work:
    """Outcome of work that may have been killed.

    Attributes:
        seconds: until all processes had ended.
        was_killed: whether SIGKILL came before the work was done.
        had_changes: whether, at that moment, kinst's journal had changes of a guest.
    """

    seconds: float
    was_killed: bool
    had_changes: bool


def work_killed(work: Callable[[], object], moment: float | None) -> Work:
    """Do some work in a new process, which SIGKILL ends after so many seconds (not at all if it
    is None); wait until all processes that it started have ended.
    """
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    others, started = children(), time.monotonic()
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    had_changes = False
    if moment is not None:
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        with suppress(FileNotFoundError):  # the guardian deletes it when it has undone all
            for journal in (cache_folder() / "planted").iterdir():
                had_changes = had_changes or journal.stat().st_size > 0
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(int(BOOT_SECONDS))
    ends: dict[int, int] = {}
    while set(children()) - {*others}:
        # Looking again and again would take most of an emulated processor.
        process, state = os.waitpid(-1, 0)
        ends[process] = state
    signal.alarm(0)
    return Work(time.monotonic() - started, os.WIFSIGNALED(ends[child]), had_changes)


def too_late(*_: object) -> None:
    raise AssertionError(f"after {BOOT_SECONDS:g} s there still are {children()}")


def moments(whole: float) -> list[float]:
    """Return KILLS moments within so many seconds, one at random in each part of equal length."""
    draw = random.Random(os.environ.get("KINST_TEST_SEED", "1"))
    return [round((part + draw.random()) * whole / KILLS, 2) for part in range(KILLS)]


def killed() -> object:
    """Kill kinst with SIGKILL while it attaches, plans, plants, traces, or unplants, KILLS times.

    Returns how long a trace takes; of each kill its moment in seconds, whether it ended a trace,
    and whether the guest had changes; and what was wrong after each.
    """
    with plain(2) as guest:

        def trace() -> None:
            with kinst.attach(machine=guest.pid, kernel=kernel().debug) as machine:
                machine.run(EVERY, seconds=1.0)

        before = guest.text()
        trace()  # what this imports and compiles need not be done again
        whole = work_killed(trace, None).seconds
        kills, wrong = [], []
        for moment in moments(whole):
            done = work_killed(trace, moment)
            kills.append([moment, done.was_killed, done.had_changes])
            guest.read(FEW)
            if changed := guest.changed(before):
                wrong.append([moment, changed])
        with kinst.attach(machine=guest.pid, kernel=kernel().debug) as machine:
            counts = {"auto": traced(machine, guest, "auto", EVERY, MANY)}
        return {"whole": whole, "kills": kills, "wrong": wrong, "counts": counts}


def killed_boots() -> object:
    """Kill kinst with SIGKILL while it starts a guest from its saved state, traces it, or ends it,
    KILLS times.  All processes that it has started must end.

    Returns how long a trace takes; of each kill its moment in seconds, and whether it ended a
    trace; and the counts of a trace afterwards.
    """

    def trace() -> list[Any]:
        with kinst.boot(
            accel="kvm", append=APPEND, cpus=1, memory="256m", copies=[READS]
        ) as machine:
            found = machine.run(EVERY, f"reads {MANY}", options={"quiet": True})
            return [MANY, counted(found.aggregations[""]), len(found.lost)]

    trace()
    whole = work_killed(trace, None).seconds
    kills = [[moment, work_killed(trace, moment).was_killed] for moment in moments(whole)]
    return {"whole": whole, "kills": kills, "counts": {"auto": trace()}}


def timers() -> object:
    """Trace timers of a guest that sleeps, by the command line: until its command ends, and until
    --timeout.  Returns the exit status of each, and what it has written.
    """
    found = {}
    for name, words in (
        ("command", ("-c", f"sleep {SLEEP}")),
        ("timeout", ("--timeout", str(SLEEP), "-c", "sleep 600")),
    ):
        arguments = ["--accel", "kvm", "--append", APPEND, "--cpus", "2", "--memory", "256m"]
        written = FOLDER / f"timers-{name}"
        child = os.fork()
        if not child:
            status = 1
            try:
                with written.open("wb") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                status = command.main([*arguments, "-n", TIMED, *words])
            finally:
                os._exit(status)
        _, state = os.waitpid(child, 0)
        found[name] = [os.waitstatus_to_exitcode(state), written.read_text()]
    return found


def folders() -> object:
    """Trace (with -x batch) a guest with four CPUs whose command runs on this guest's files."""
    with kinst.boot(accel="kvm", append=APPEND, cpus=4, memory="512m", root="/") as machine:
        found = machine.run(EVERY, f"{READS} {MANY}", options={"batch": "600s", "quiet": True})
        cpus = machine.execute("nproc").output.decode()
    return {"rows": counted(found.aggregations[""]), "cpus": int(cpus)}


def two() -> object:
    """Trace two guests at the same time, by one process."""

    def trace(machine: kinst.Machine, options: dict[str, Any]) -> list[Any]:
        found = machine.run(EVERY, f"reads {MANY}", options={**options, "quiet": True})
        return [MANY, counted(found.aggregations[""]), len(found.lost)]

    with ExitStack() as stack:
        machines = [
            stack.enter_context(kinst.boot(
                accel="kvm", append=APPEND, cpus=cpus, memory="256m", copies=[READS]
            ))
            for cpus in (1, 2)
        ]  # fmt: skip
        with ThreadPoolExecutor() as threads:
            return dict(zip(("1", "2"), threads.map(trace, machines, TWO), strict=True))


def live() -> object:
    """Trace a guest from inside, by --live."""
    out = FOLDER / "live"
    cache = cache_folder()  # with the index of the kernel, which would take an hour to make
    words = (sys.executable, "-m tests.vm.kvm.live_under_kvm", kernel().debug, READS, MANY)
    line = f"""
        cp -r $XDG_CACHE_HOME/kinst/modules {cache}
        export XDG_CACHE_HOME={cache.parent} PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1
        exec {" ".join(map(str, words))} >{out} 2>&1
    """
    with kinst.boot(
        accel="kvm", append=APPEND, cpus=1, memory="2g", root="/", writable=[FOLDER]
    ) as machine:
        done = machine.execute(f". {FOLDER}/{PREPARE}\ncd {ROOT}\n{line}", LIVE_SECONDS)
    said = out.read_text()
    assert done.status == 0, said
    return json.loads(said.splitlines()[-1])


def shell(*words: str) -> object:
    """Run a shell command of an experiment, and return its output."""
    done = subprocess.run(["sh", "-c", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return [done.returncode, done.stdout.decode(errors="replace")]


CHECKS: dict[str, Callable[..., object]] = {
    "attach": attached, "boot": boot, "folders": folders, "killed": killed,
    "killed boots": killed_boots, "live": live, "shell": shell, "stub": stub, "timers": timers,
    "two": two,
}  # fmt: skip


def answer(asked: Path) -> None:
    """Make the check that a file asks for, and write its result and its seconds next to it."""
    name, *words = json.loads(asked.read_text())
    started = time.monotonic()
    try:
        result = CHECKS[name](*words)
    except BaseException as error:
        result = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    written = asked.with_suffix(".written")
    written.write_text(json.dumps([result, round(time.monotonic() - started, 1)]))
    written.rename(asked.with_suffix(ANSWERED))


def main() -> None:
    load_module(MODULE)
    # An emulated processor that shares a busy host's CPUs boots a guest in more than three minutes.
    vm_machine._BOOT_SECONDS = BOOT_SECONDS
    kinst.host().run("BEGIN { exit(0); }")  # what this imports, no check need import again
    faulthandler.register(signal.SIGUSR1)
    (FOLDER / ALIVE).touch()
    (FOLDER / READY).touch()
    begun: dict[str, int] = {}
    while not (FOLDER / END).exists():
        (FOLDER / ALIVE).touch()
        for name in sorted(os.listdir(FOLDER)):
            check, kind = os.path.splitext(name)
            if kind == ASKED and check not in begun:
                begun[check] = os.fork()
                if not begun[check]:
                    answer(FOLDER / name)
                    os._exit(0)
            if kind == SHOW:
                os.kill(begun[check], signal.SIGUSR1)
                (FOLDER / name).unlink()
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(1.0)


if __name__ == "__main__":
    main()
