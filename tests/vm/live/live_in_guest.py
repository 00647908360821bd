"""Checks of test_live.py that run as root in a guest: kinst on the machine that it runs on.

live_in_guest.py VMLINUX READS PROGRAM REQUESTS LATENESS CHECK...: each check prints a line of
JSON, [its name, its result, seconds].  All checks run in one process and, except those that kill
it, on one kinst.live(), because starting kinst takes a guest a minute.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import kinst
from kinst.errors import KinstError
from kinst.events import Record
from kinst.machines.live.device import DEVICE, JUMP, Device
from kinst.machines.live.machine import LiveKernel
from kinst.machines.live.set_up import load, unload
from kinst.wire.kernel_module import unload_module
from tests.vm.live import live_changes
from tests.vm.live.live_replay import Kcore, Recorded, recorded, replayed
from tests.vm.live.live_soak import Soak
from tests.vm.live.other_probes import BpfFentry, BpfKprobe, FunctionTracer, KprobeEvent, Livepatch

VMLINUX, READS = sys.argv[1], int(sys.argv[2])
PROGRAM, REQUESTS, LATENESS = sys.argv[3:6]
FUZZ = int(os.environ.get("KINST_TEST_FUZZ", "1000000"))
PATCH = os.environ.get("KINST_TEST_LIVEPATCH", "")
SOAK, SEED = (int(os.environ.get(f"KINST_TEST_{name}", "60")) for name in ("SOAK", "SEED"))
KILLS = int(os.environ.get("KINST_TEST_KILLS", "200"))
OWN = '/execname == "reads"/'
BAD = re.compile(r"BUG|WARNING|Oops|general protection|soft lockup|Call Trace")
# The kernel's report of a process that it killed for lack of memory has the process's stack too.
OUT_OF_MEMORY = re.compile(r"invoked oom-killer.*?Out of memory: Killed process[^\n]*", re.S)
LOADED = Path("/sys/module/kinst")
MODULE = "kinst"
MOST_PLACES = 5
PATIENCE = 15  # seconds
# Functions with loops too, in which chains lead back into themselves.
SOME = """
    fbt::vfs_*:entry, kinst::vfs_read:, kinst::link_path_walk*:, kinst::__d_lookup_rcu: {
        @ = count();
    }
"""
MANY = "kinst::vfs_*:, kinst::tcp_[a-g]*: { @ = count(); }"


@cache
def here() -> kinst.Machine:
    return kinst.live(debug=VMLINUX)


@cache
def some() -> Recorded:
    """Start a trace of the entries of two hundred functions, and of all instructions of some."""
    return recorded(here(), SOME, f"{PROGRAM} 100")


KCORE = Kcore()


@cache
def before() -> bytes:
    """Return the kernel's text, without patches of kinst."""
    return KCORE.text()


def same() -> bool:
    return KCORE.text() == before()


def changed() -> list[str]:
    """Return where the text differs (at most MOST_PLACES): function and offset, bytes before and
    now.

    Static keys that were flipped are left out, such as the key that a kernel flips for the first
    pointer that it prints.
    """
    was, now = before(), KCORE.text()
    if was == now:
        return []
    lines = (line.split() for line in Path("/proc/kallsyms").read_text().splitlines())
    names = sorted((int(place, 16), name) for place, kind, name, *_ in lines if kind in "tT")
    every = np.flatnonzero(np.frombuffer(was, np.uint8) != np.frombuffer(now, np.uint8))
    keyed = KCORE.keyed()
    places = np.array([at for at in every.tolist() if KCORE.low + at not in keyed], np.int64)
    first = places[np.flatnonzero(np.diff(places, prepend=-9) > 8)][:MOST_PLACES].tolist()
    found = []
    for at in first:
        start, name = names[bisect_right(names, (KCORE.low + at, "~")) - 1]
        bytes_ = f"{was[at : at + 8].hex()} {now[at : at + 8].hex()}"
        found.append(f"{name}+{KCORE.low + at - start} {bytes_}")
    return found


@contextmanager
def busy() -> Iterator[None]:
    """Keep each CPU busy with work that executes the traced functions."""
    loop = ["/bin/sh", "-c", f"while :; do {PROGRAM} 200; ls -lR /proc/sys; done"]
    children = [
        subprocess.Popen(
            loop, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for child in children:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def exact() -> object:
    """Count READS reads in several ways.

    Sites are an instruction that has room for a jump, by each way, and every instruction of
    vfs_read in a thousand reads, one by one and in chains.
    """
    found: dict[str, Any] = {}
    program = f"kinst::vfs_read: {OWN} {{ @[probename] = count(); }}"
    run = here().run(program, f"{PROGRAM} 1000")
    each = {str(key[0]): count for key, count in run.aggregations[""].items()}
    found["all"] = each
    place = min({int(name) for name, n in each.items() if n == 1000} & roomy())
    for way in ("jump", "trap"):
        program = f"kinst::vfs_read:{place} {OWN} {{ @ = count(); }}"
        run = here().run(program, f"{PROGRAM} {READS}", options={"plant": way})
        found[way] = run.aggregations[""][()]
    # Chains and shared counters count the reads of others too.
    program = "kinst::vfs_read: { @[probename] = count(); }"
    found["every"] = []
    for _ in range(4):  # the third uses the room for counters again
        run = here().run(program, f"{PROGRAM} {READS // 10}")
        found["every"] += [{key[0]: count for key, count in run.aggregations[""].items()}]
    program = f"fbt::vfs_read:entry {OWN} {{ @[pid == $target, stackdepth > 2] = count(); }}"
    of_target = here().run(program, f"{PROGRAM} 50").aggregations[""]
    found["target"] = [[*key, count] for key, count in of_target.items()]
    return found


def roomy() -> frozenset[int]:
    """Return offsets of the instructions of vfs_read that a jump fits over."""
    trace = here().trace(here().compile("kinst::vfs_read: { @ = count(); }"))
    found = frozenset(one.offset for one in trace.sites if one.size >= JUMP)
    trace.close()
    return found


def sampled() -> object:
    """Sample with profile-97.

    Returns:
        Seconds, counts of each CPU, samples in the kernel and in user mode, stacks, and how many
            of them begin at arg0.
    """
    clauses = """
        profile-97 { @cpus[cpu] = count(); @where[arg0 != 0, arg1 != 0] = count(); }
        profile-97 { @first = min(timestamp); @last = max(timestamp); }
        profile-97 /arg0 && execname == "reads"/ { @top[stack(1), arg0] = count(); }
        profile-97 /execname == "reads"/ { @pid[pid == $target] = count(); }
    """
    found = here().run(clauses, f"{PROGRAM} {READS}").aggregations
    seconds = (found["last"][()] - found["first"][()]) / 1e9
    top = [
        [{f.address for f in stack.frames} == {place % (1 << 64)}, n]
        for (stack, place), n in found["top"].items()
    ]
    names = ("cpus", "where", "pid")
    rows = {name: [[*key, n] for key, n in found[name].items()] for name in names}
    return [seconds, rows, sum(n for right, n in top if right), sum(n for _, n in top)]


def refused() -> object:
    """Return the messages about requests that cannot be fulfilled."""
    found: dict[str, object] = {}

    def said(name: str, call: Callable[[], object]) -> None:
        try:
            found[name] = repr(call())
        except KinstError as error:
            found[name] = str(error)

    stop = {"plant": "stop"}
    said("stop", lambda: here().run("kinst::vfs_read:0 { @ = count(); }", "true", options=stop))
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
    try:
        unload_module(MODULE)
    except OSError as error:
        found["rmmod"] = os.strerror(error.errno or 0)
    return found


ORDERS = ("K+ X+ K- X-", "K+ X+ X- K-", "X+ K+ K- X-", "X+ K+ X- K-", "X+ X- K+ K-", "K+ K- X+ X-")


def _in_order(program: kinst.Program, other: Any, order: str, run: list[str]) -> list[str]:
    """Return the messages of the steps: K is kinst, X the other; + attaches it, - detaches it."""
    said: list[str] = []
    trace: Any = None
    events: Iterator[object] = iter(())
    for step in order.split():
        try:
            if step == "K+":
                trace = here().trace(program)
                events = iter(trace)
                next(events)
            elif step == "K-":
                trace.stop()
                for _ in events:
                    pass
            elif step == "X+":
                other.on()
            else:
                other.off()
        except (KinstError, OSError, StopIteration, TimeoutError) as error:
            said.append(f"{step} {type(error).__name__}: {error}")
        ran = subprocess.run(run, check=True, capture_output=True, text=True)
        if step == "X+" and isinstance(other, Livepatch) and other.shows not in ran.stdout:
            said.append("X+ without an effect")
    if trace is not None:
        trace.close()
    return said


def orders() -> object:
    """Combine kinst with each of the kernel's own ways to probe, on the same function, in every
    order.

    Returns the messages, and where the text was not restored after each.
    """
    trace = here().trace("kinst::vfs_read: { @ = count(); }")
    inside = trace.sites[4]  # an instruction that each read executes
    trace.close()
    return _all_orders("auto", f"vfs_read+{inside.offset}")


def left_to_ftrace() -> object:
    """Combine them again, leaving ftrace's call sites to ftrace."""
    return _all_orders("no-callsite")


def _all_orders(plant: str, inside: str = "") -> object:
    """Combine them in all orders.

    Args:
        plant: the option.
        inside: where one more kprobe is.
    """
    before()
    whole = "kinst::{}: {{ @ = count(); }} tick-20ms {{ trace(1); }}"
    program = here().compile(whole.format("vfs_read"), {"plant": plant})
    reads = [PROGRAM, "50"]
    ways: list[tuple[str, Any, kinst.Program, list[str]]] = [
        ("kprobe", KprobeEvent("vfs_read"), program, reads),
        ("function tracer", FunctionTracer("vfs_read"), program, reads),
        ("BPF on a kprobe", BpfKprobe("vfs_read"), program, reads),
        ("BPF at the entry", BpfFentry("vfs_read"), program, reads),
    ]
    if inside:
        ways.append(("kprobe inside", KprobeEvent(inside), program, reads))
    if PATCH:
        shown = here().compile(whole.format("cmdline_proc_show"), {"plant": plant})
        ways.append(("livepatch", Livepatch(Path(PATCH)), shown, ["cat", "/proc/cmdline"]))
    found = []
    for name, other, wanted, run in ways:
        for order in ORDERS:
            said = _in_order(wanted, other, order, run)
            for _ in range(PATIENCE):  # bytes that others had are tried again each second
                time.sleep(1)
                left = changed()
                if not left:
                    break
            found.append([name, order, said, left])
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def many() -> object:
    """Plant many sites, and exits of chains, three times with all CPUs busy.

    Returns:
        The numbers of both, seconds to plant and to unplant, how late a thread was (first with no
            load), and whether the text is restored.
    """
    alone()
    with kinst.live(debug=VMLINUX) as machine:
        what = recorded(machine, MANY, f"{PROGRAM} 100")
    found = []
    with busy():
        time.sleep(1.0)
        for _ in range(3):
            with late() as without:
                time.sleep(4.0)
            with late() as planting:
                taken = what.again(lambda: None, 20, 0.3)
            found.append([*taken, without, planting])
    return [len(what.sites), len(what.exits), found, same()]


@contextmanager
def late() -> Iterator[list[float]]:
    """Measure how late a thread of each CPU was at most, in ms; known at the end."""
    found: list[float] = []
    pipe = subprocess.PIPE
    with subprocess.Popen([LATENESS, "10"], stdin=pipe, stdout=pipe, text=True) as watching:
        yield found
        said, _ = watching.communicate()
    found += [int(line.split()[4]) / 1000 for line in said.splitlines()]


def followed() -> object:
    """Follow a process that reads and then ends, by -p.

    Returns:
        How often it was seen, whether by $target, why the trace ended, and the message about a
            process that does not exist.
    """
    alone()
    child = subprocess.Popen(
        ["sh", "-c", f"kill -STOP $$; exec {PROGRAM} 300"], stdout=subprocess.DEVNULL
    )
    program = """
        fbt::vfs_read:entry /pid == $target/ { @[execname] = count(); }
        tick-1s { trace("it is planted"); }
    """
    with kinst.live(debug=VMLINUX, process=child.pid) as machine, machine.trace(program) as trace:
        for event in trace:
            if isinstance(event, Record):
                os.kill(child.pid, signal.SIGCONT)
                child.wait()
        end, counted = trace.end, trace.aggregations()[""]
    assert end is not None
    try:
        kinst.live(debug=VMLINUX, process=child.pid)
        said = ""
    except KinstError as error:
        said = str(error)
    return [{key[0]: n for key, n in counted.items()}, end.reason, end.status, said]


@cache
def alone() -> None:
    """Close the device, and keep the module with its scratch."""
    if {"killed", "silent"} & {*CHOSEN}:
        some()
    here().close()


def killed() -> object:
    """Kill kinst at any moment, by kill -9 or for lack of memory.

    Returns:
        How often each happened, how often the module could be removed meanwhile, at how many
            moments (each third is checked) the text was changed, how often it was not restored
            afterwards, and whether it is at the end.
    """
    alone()
    chance, wrong, taken_out, seen = random.Random(1), 0, 0, 0
    ways = {"kill": 0, "memory": 0}
    places = [site.address for site in some().sites]
    pages = KCORE.pages(places)
    with busy():
        for number in range(KILLS):
            way = ("kill", "memory")[number % 2]
            with replayed(some()) as child:
                time.sleep(chance.uniform(0.0, 2.0))
                if number % 3 == 0:
                    seen += any(KCORE.pages(places) != pages for _ in range(20))
                with suppress(OSError):
                    unload_module(MODULE)
                    taken_out += 1
                if way == "memory":
                    Path(f"/proc/{child}/oom_score_adj").write_text("1000")
                    Path("/proc/sysrq-trigger").write_text("f")
                    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            ways[way] += 1
            wrong += KCORE.pages(places) != pages
    return [ways, taken_out, seen, wrong, same()]


def silent() -> object:
    """Stop kinst for longer than the module waits: often with a wait of a second, once with the
    usual one.

    Returns whether the text was restored while kinst was still stopped, and the messages.
    """
    alone()
    chance = random.Random(2)
    places = [site.address for site in some().sites]
    pages, found = KCORE.pages(places), []
    with busy():
        for patience, stands in ((1, 4.0),) * max(KILLS // 20, 5) + ((20, 60.0),):
            with replayed(some(), patience, 0.3) as child:
                time.sleep(chance.uniform(0.0, 2.0))
                os.kill(child, signal.SIGSTOP)
                time.sleep(stands)
                found.append(KCORE.pages(places) == pages)
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    return [found, "nothing heard of kinst" in log]


def malformed() -> object:
    """Send malformed requests of all kinds; return how many were made and accepted, and whether
    the text is restored."""
    alone()
    said = subprocess.run([REQUESTS, str(FUZZ), "2"], capture_output=True, text=True, check=True)
    made, accepted = map(int, said.stdout.split())
    return [made, accepted, same()]


def soaked() -> object:
    """Soak for SOAK seconds; return how often each thing happened, what was wrong, and whether the
    text is restored."""
    if here.cache_info().currsize:
        alone()

    def record() -> Recorded:
        with kinst.live(debug=VMLINUX) as machine:
            return recorded(machine, SOME, f"{PROGRAM} 100")

    soak = Soak(record, KCORE, REQUESTS, PATCH, SEED)
    with busy():
        soak.run(SOAK)
    return [soak.done, soak.wrong, same()]


def unloaded() -> object:
    """Return whether the module is loaded while kinst runs, and after it."""
    alone()
    isa = here()._isa
    unload()
    found = [LOADED.exists()]
    machine = LiveKernel(isa)
    found.append(LOADED.exists())
    machine.close()
    return [*found, LOADED.exists()]


def changes() -> object:
    """Return the results of live_changes.py, by name."""
    found: dict[str, object] = {}
    for check in (live_changes.turned_off, live_changes.slept, live_changes.on_its_own_path):
        found[check.__name__] = check(here(), min(roomy()), PROGRAM, READS // 10)
        print(json.dumps([check.__name__, found[check.__name__]]), file=sys.stderr, flush=True)
    return found


def overloaded() -> object:
    """Return the messages about probes that leave the machine no time, and whether the text is
    restored."""
    alone()
    return [live_changes.overloaded(VMLINUX), same()]


def log() -> object:
    """Return the kernel's complaints."""
    said = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    return [line for line in OUT_OF_MEMORY.sub("", said).splitlines() if BAD.search(line)]


CHECKS = {
    one.__name__: one
    for one in (
        exact, sampled, refused, orders, left_to_ftrace, changes, many, followed, killed, silent,
        malformed, soaked, unloaded, overloaded, log,
    )
}  # fmt: skip
CHOSEN = sys.argv[6:] or [*CHECKS]


def main() -> None:
    load()
    before()
    for name in CHOSEN:
        started = time.monotonic()
        try:
            result = CHECKS[name]()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        print(json.dumps([name, result, round(time.monotonic() - started, 1)]), flush=True)


if __name__ == "__main__":
    main()
