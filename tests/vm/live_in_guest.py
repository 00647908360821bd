"""What test_live.py runs as root in a guest: kinst on the very machine that it is on.

live_in_guest.py VMLINUX READS PROGRAM REQUESTS CHECK...: each check prints a line of JSON, [its
name, what was found].  All in one process, which has loaded kinst once."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kinst
from kinst.errors import KinstError
from kinst.machines.live.device import DEVICE, Device

VMLINUX, READS = sys.argv[1], int(sys.argv[2])
PROGRAM, REQUESTS = sys.argv[3:5]
FUZZ = int(os.environ.get("KINST_TEST_FUZZ", "1000000"))
OWN = '/execname == "reads"/'
BAD = re.compile(r"BUG|WARNING|Oops|general protection|soft lockup|Call Trace")


def text() -> str:
    """A checksum of the kernel's text, read while nothing is planted by this process."""
    symbols = (line.split() for line in Path("/proc/kallsyms").read_text().splitlines())
    places = {words[2]: int(words[0], 16) for words in symbols if words[2] in ("_stext", "_etext")}
    low, high = places["_stext"], places["_etext"]
    device = Device()
    try:
        return hashlib.sha256(device.read(low, high - low)).hexdigest()
    finally:
        device.close()


def machine() -> kinst.Machine:
    return kinst.live(debug=VMLINUX)


def exact() -> object:
    """READS reads counted by each way, and every instruction of vfs_read in a thousand."""
    found: dict[str, object] = {}
    with machine() as here:
        for way in ("jump", "trap"):
            program = f"fbt::vfs_read:entry {OWN} {{ @ = count(); }}"
            run = here.run(program, f"{PROGRAM} {READS}", options={"plant": way})
            found[way] = run.aggregations[""][()]
        program = f"kinst::vfs_read: {OWN} {{ @[probename] = count(); }}"
        run = here.run(program, f"{PROGRAM} 1000")
        found["all"] = {key[0]: count for key, count in run.aggregations[""].items()}
        program = f"fbt::vfs_read:entry {OWN} {{ @[pid == $target, stackdepth > 2] = count(); }}"
        of_target = here.run(program, f"{PROGRAM} 50").aggregations[""]
        found["target"] = [[*key, count] for key, count in of_target.items()]
    found["unloaded"] = not Path("/sys/module/kinst").exists()
    return found


def refused() -> object:
    """What is said of what there cannot be."""
    found: dict[str, object] = {}

    def said(name: str, call: Callable[[], object]) -> None:
        try:
            found[name] = repr(call())
        except KinstError as error:
            found[name] = str(error)

    with machine() as here:
        count = "{ @ = count(); }"
        stop = {"plant": "stop"}
        said("stop", lambda: here.run(f"kinst::vfs_read:0 {count}", "true", options=stop))
        said("second", Device)
        found["mode"] = oct(DEVICE.stat().st_mode & 0o777)
        child = os.fork()
        if not child:
            os.setuid(65534)
            try:
                os.open(DEVICE, os.O_RDWR)
            except OSError as error:
                os._exit(error.errno)
            os._exit(0)
        found["other user"] = os.strerror(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return found


@contextmanager
def tracing() -> Iterator[int]:
    """A process that has planted two hundred functions' entries, and traces; its id."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with machine() as here:
            program = here.compile("fbt::vfs_*:entry, kinst::vfs_read: { @ = count(); }")
            for _ in here.trace(program, command=f"echo on >&2; while :; do {PROGRAM} 10; done"):
                os.write(writing, b"x")
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        subprocess.run(["pkill", "-f", PROGRAM], check=False)


def loaded() -> None:
    """The module is there from now on."""
    from kinst.machines.live.set_up import load  # noqa: PLC0415

    load()


def killed() -> object:
    """kill -9 while sites are planted: whether they were seen in the text, and are gone."""
    loaded()
    before, found = text(), []
    chance = random.Random(1)
    for _ in range(3):
        with tracing():
            time.sleep(chance.uniform(0.0, 1.0))
            busy = ""
            try:
                Device().close()
            except KinstError as error:
                busy = str(error)
        found.append([busy, text() == before])
    return found


def silent() -> object:
    """A kinst that stands still for longer than the module waits."""
    loaded()
    before = text()
    with tracing() as child:
        os.kill(child, signal.SIGSTOP)
        time.sleep(30)
        log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    return ["nothing heard of kinst" in log, text() == before]


def many() -> object:
    """How many sites were planted, the seconds to plant and to unplant them, and whether they were
    hit."""
    with machine() as here:
        target = here._opened  # what is timed is below the library's surface
        here.start()
        planter = target.traced.target.planter
        times = []

        def timed(call: Callable[..., object]) -> Callable[..., object]:
            def run(*arguments: object) -> object:
                started = time.monotonic()
                try:
                    return call(*arguments)
                finally:
                    times.append(round(time.monotonic() - started, 2))

            return run

        planter._device.plant = timed(planter._device.plant)
        planter._device.unplant = timed(planter._device.unplant)
        program = here.compile("kinst::vfs_*:, kinst::tcp_[a-e]*: { @ = count(); }")
        trace = here.trace(program, command=f"{PROGRAM} 1000")
        sites = len(trace.sites) - len(trace.left_out)
        for _ in trace:
            pass
        return [sites, times, trace.aggregations()[""][()] > 0]


def sampled() -> object:
    """profile-97: seconds, the counts of each CPU, how many samples were in the kernel and in
    user mode, and the names at the top of the kernel's stacks with those of arg0."""
    with machine() as here:
        clauses = """
            profile-97 { @cpus[cpu] = count(); @where[arg0 != 0, arg1 != 0] = count(); }
            profile-97 /arg0 && execname == "reads"/ { @top[stack(1), arg0] = count(); }
            profile-97 /execname == "reads"/ { @pid[pid == $target] = count(); }
        """
        started = time.monotonic()
        found = here.run(clauses, f"{PROGRAM} {READS // 4}").aggregations
        seconds = time.monotonic() - started
        top = [
            [{f.address for f in stack.frames} == {place}, n]
            for (stack, place), n in found["top"].items()
        ]
    names = ("cpus", "where", "pid")
    rows = {name: [[*key, n] for key, n in found[name].items()] for name in names}
    return [seconds, rows, sum(n for same, n in top if same), sum(n for _, n in top)]


def malformed() -> object:
    """Requests of any kind that are wrong: how many were made and accepted, and whether the text is
    as before."""
    loaded()
    before = text()
    said = subprocess.run([REQUESTS, str(FUZZ), "2"], capture_output=True, text=True, check=True)
    made, accepted = map(int, said.stdout.split())
    return [made, accepted, text() == before]


TRACEFS = Path("/sys/kernel/tracing")
ORDERS = ("K+ X+ K- X-", "K+ X+ X- K-", "X+ K+ K- X-", "X+ K+ X- K-")


def _write(*settings: tuple[str, str]) -> None:
    for name, value in settings:
        (TRACEFS / name).write_text(value + "\n")


def _other(name: str, *, on: bool) -> None:
    """Put one of the kernel's own ways to trace on vfs_read, or take it off."""
    if name == "function tracer":
        settings = [("set_ftrace_filter", "vfs_read"), ("current_tracer", "function")]
        off = [("current_tracer", "nop"), ("set_ftrace_filter", "")]
    else:
        settings = [("kprobe_events", f"p:other {name}"), ("events/kprobes/other/enable", "1")]
        off = [("events/kprobes/other/enable", "0"), ("kprobe_events", "")]
    _write(*(settings if on else off))


def _in_order(here: kinst.Machine, program: kinst.Program, name: str, order: str) -> list[str]:
    """What the steps said: K is kinst, X the other; + puts it on, - takes it off."""
    said: list[str] = []
    trace, events = None, iter(())
    for step in order.split():
        try:
            if step == "K+":
                trace = here.trace(program)
                events = iter(trace)
                next(events)
            elif step == "K-" and trace is not None:
                trace.stop()
                for _ in events:
                    pass
                trace.close()
            elif step[0] == "X":
                _other(name, on=step == "X+")
        except (KinstError, OSError, StopIteration) as error:
            said.append(f"{step} {type(error).__name__}: {error}")
        subprocess.run([PROGRAM, "50"], check=True, capture_output=True)
    return said


def orders() -> object:
    """kinst, and kprobes and the function tracer on the same function, in every order: what was
    said, and whether the text is as before after each."""
    loaded()
    if not (TRACEFS / "kprobe_events").exists():
        subprocess.run(["mount", "-t", "tracefs", "none", TRACEFS], check=True)
    found = []
    with machine() as here:
        here.start()
        target = here._opened.traced.target
        assert target is not None
        low, high = here._opened.traced.text

        def now() -> str:
            return hashlib.sha256(target.read(low, high - low)).hexdigest()

        before = now()
        program = here.compile("kinst::vfs_read: { @ = count(); } tick-20ms { trace(1); }")
        trace = here.trace(program)
        inside = trace.sites[4]  # an instruction on the way of each read
        trace.close()
        place = f"vfs_read+{inside.address - inside.function.address}"
        for name in ("vfs_read", place, "function tracer"):
            for order in ORDERS:
                said = _in_order(here, program, name, order)
                time.sleep(2)  # what a kprobe had is tried again each second
                found.append([name, order, said, now() == before])
    return found


def log() -> object:
    """What the kernel complained of."""
    said = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    return [line for line in said.splitlines() if BAD.search(line)]


CHECKS = {
    one.__name__: one
    for one in (exact, sampled, refused, orders, killed, silent, many, malformed, log)
}

for name in sys.argv[5:] or CHECKS:
    started = time.monotonic()
    try:
        result = CHECKS[name]()
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    print(json.dumps([name, result, round(time.monotonic() - started, 1)]), flush=True)
