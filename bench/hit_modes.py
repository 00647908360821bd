"""The ways to probe that bench/hit_cost.py compares (modes), and the search for an instruction to
probe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.boots import TAKES, Mode
from bench.guest import Guest, Ran
from bench.hit_tools import (
    OPTIMIZATION,
    TRACING,
    Bpf,
    Effort,
    Kinst,
    Kprobes,
    Paired,
    counts_of,
    distribution,
    records,
    total,
)
from kinst import KinstError, Program

PROBING = 1000  # number of reads that shows which instructions each read runs

# Rounds of 0.2 ms: most have no interrupt in them.
QUICK = Effort(200, 400)  # for modes that cost up to a few hundred ns
MIDDLE = Effort(200, 200)
RECORDS = Effort(200, 60, times=10)  # each pass fits into the ring
LONG = Effort(200, 400)  # all instructions of a function
SHORT = Effort(400, 400, "getppid")  # all instructions of a short function
DEAR = Effort(100, 20)  # all instructions, by traps
SHORT_DEAR = Effort(100, 20, "getppid")
STOPS = Effort(10, 15)
ONCE = 1  # number of takes in a boot, for modes that cost a microsecond or more

JUMP, TRAP = "kinst jump: @ = count()", "kinst trap: @ = count()"
JUMP_EVENT, TRAP_EVENT = "kprobe event, jump, trace buffer", "kprobe event, trap, trace buffer"
ALL, GETPPID = "all: ", "getppid: "


# Functions that are probed.


@dataclass(frozen=True, slots=True)
class Place:
    """Instructions to probe.

    Attributes:
        function: a function that each call runs.
        offset: offset of the chosen instruction.
        text: disassembly of the chosen instruction.
        all: number of hits in a call, by offset, for each instruction of the function that a call
            runs.
        allowed: offsets of those instructions at which the kernel allows kprobes.
    """

    function: str
    offset: int
    text: str
    all: Mapping[int, int]
    allowed: tuple[int, ...] = ()


def find_place(guest: Guest) -> Place:
    """Return an instruction of the driver's read function that all tools can probe; if there is
    none, an instruction of vfs_read."""
    named = guest.compile("kinst::*read*zero*:0, kinst::vfs_read:0 { @[probefunc] = count(); }")
    counts = counts_of(guest.trace(named, f"rounds {PROBING} 1"))
    functions = sorted((name for name, n in counts.items() if n >= PROBING), key="vfs_read".__eq__)
    for function in functions:
        hits = _hits(guest, function, "")
        once = {
            int(one.name): one.text
            for one in guest.machine.probes(f"kinst::{function}:")
            if hits.get(int(one.name)) == 1
            and (len(one.code) >= 5 or not optimises(guest))
            and one.kind == "next"
            and "nop" not in one.text
        }
        kprobe = Kprobes(guest, function, tuple(once), optimise=optimises(guest))
        listed = guest.run(kprobe.script(":")) if once else ""
        wanted = r".*\[OPTIMIZED\]" if optimises(guest) else r"(?!.*\[FTRACE\])"
        found = re.findall(rf"\+0x([0-9a-f]+) {wanted}", listed)
        if found:
            offset = min(int(word, 16) for word in found)
            return Place(function, offset, once[offset], hits, _allowed(guest, function, hits))
    raise KinstError(f"the kernel wants no kprobe at any instruction of {functions}")


def find_getppid(guest: Guest) -> Place:
    """Return all instructions of the function of getppid(2)."""
    named = guest.compile("kinst::*sys_getppid:0 { @[probefunc] = count(); }")
    counts = counts_of(guest.trace(named, f"rounds {PROBING} 1 getppid"))
    function = next(name for name, n in counts.items() if n >= PROBING)
    hits = _hits(guest, function, " getppid")
    return Place(function, 0, "", hits, _allowed(guest, function, hits))


def _hits(guest: Guest, function: str, call: str) -> dict[int, int]:
    counts = counts_of(guest.trace(_counting_all(guest, function), f"rounds {PROBING} 1{call}"))
    return {int(k): n // PROBING for k, n in counts.items() if n >= PROBING}


def _counting_all(guest: Guest, function: str) -> Program:
    return guest.compile(f"kinst::{function}: {{ @[probename] = count(); }}")


def _allowed(guest: Guest, function: str, hits: Mapping[int, int]) -> tuple[int, ...]:
    """Return the offsets at which the kernel allows kprobes, found by trying. (kinst counts at all
    instructions that it can plant; the cost of each tool is divided by its own number of hits.)"""
    offsets = tuple(sorted(hits))
    tried = guest.run(
        f"cd {TRACING}\n"
        + "".join(
            f"echo 'p:k{o} {function}+{o}' >>kprobe_events 2>/dev/null || echo refused {o}\n"
            for o in offsets
        )
        + "for e in events/kprobes/k*; do echo 1 2>/dev/null >$e/enable"
        + " || echo refused ${e##*/k}; done\n"
        + "echo 0 >events/kprobes/enable; echo >kprobe_events; usleep 100000\n"
    )
    refused = {int(o) for o in re.findall(r"^refused (\d+)$", tried, re.M)}
    return tuple(o for o in offsets if o not in refused)


def optimises(guest: Guest) -> bool:
    """Return whether this kernel can optimise kprobes to jumps."""
    return "yes" in guest.run(f"test -e {OPTIMIZATION} && echo yes || echo no")


# The tools.


def one_site_modes(guest: Guest, probed: Place) -> list[Mode]:
    """Return all modes that probe the chosen instruction."""
    site = f"kinst::{probed.function}:{probed.offset}"
    # Registers of a C function's second and third argument: a read's buffer and size.
    second, third = guest.machine.argument_registers[1:3]
    record = f'{{ printf("%d %x %x\\n", timestamp, regs[{second}], regs[{third}]); }}'

    def kinst(
        name: str, effort: Effort, count: Callable[[Ran], int], text: str, plant: str = "",
        takes: int = TAKES,
    ) -> Mode:  # fmt: skip
        program = guest.compile(text, plant, records=count is records)
        return Mode(name, effort, 1, Kinst(guest, program, count).take, takes=takes)

    def kprobe(name: str, effort: Effort, **how: bool) -> Mode:
        tool = Kprobes(guest, probed.function, (probed.offset,), **how)
        return Mode(name, effort, 1, tool.take, takes=ONCE)

    def bpf(name: str, effort: Effort, optimise: bool) -> Mode:
        tool = Bpf(guest, probed.function, (probed.offset,), optimise)
        return Mode(name, effort, 1, tool.take, takes=ONCE)

    count = f"{site} {{ @ = count(); }}"
    keyed = f"{site} {{ @[regs[{third}]] = count(); }}"
    quantized = f"{site} {{ @ = quantize(regs[{third}]); }}"
    other = f'{site} /execname == "other"/ {{ @ = count(); }}'
    never = f"{site} /regs[{third}] == 77/ {{ @ = count(); }}"
    recorded = f"{site} {record}"
    best = guest.compile(count)
    (way,) = guest.ways(best)
    modes = [
        Mode(f"kinst {way}: @ = count()", QUICK, 1, Kinst(guest, best, total).take),
        _never(kinst(f"kinst {way}: /regs[{third}] == 77/, false", QUICK, total, never)),
        _never(kinst(f'kinst {way}: /execname == "other"/, false', QUICK, total, other)),
        kinst(f"kinst {way}: @[regs[{third}]] = count()", QUICK, total, keyed),
        kinst(f"kinst {way}: @ = quantize(regs[{third}])", QUICK, distribution, quantized),
        kinst(f"kinst {way}: printf time and two registers", RECORDS, records, recorded),
    ]
    if way != "trap":
        modes += [
            kinst(TRAP, MIDDLE, total, count, "trap", ONCE),
            kinst("kinst trap: printf time and two registers", MIDDLE, records, recorded, "trap",
                  ONCE),
        ]  # fmt: skip
    modes += [
        kinst("kinst stop: @ = count()", STOPS, total, count, "stop", ONCE),
        kprobe(TRAP_EVENT, MIDDLE, buffer=True),
        kprobe("kprobe event, trap, tracing off", MIDDLE),
        bpf("BPF as bpftrace's @ = count(), trap", MIDDLE, False),
    ]
    if optimises(guest):
        modes += [
            kprobe(JUMP_EVENT, MIDDLE, optimise=True, buffer=True),
            kprobe("kprobe event, jump, tracing off", MIDDLE, optimise=True),
            kprobe("kprobe event, jump, hist trigger", MIDDLE, optimise=True, buffer=True,
                   histogram=True),
            bpf("BPF as bpftrace's @ = count(), jump", MIDDLE, True),
        ]  # fmt: skip
    return modes


def _never(mode: Mode) -> Mode:
    """Return a mode whose predicate is false: its take passes only if nothing was counted."""
    inner = mode.take

    def take(effort: Effort) -> tuple[Paired, int]:
        rounds, hits = inner(effort)
        return rounds, effort.total if hits == 0 else hits

    mode.take = take
    return mode


def all_modes(guest: Guest, probed: Place, name: str, effort: Effort, dear: Effort) -> list[Mode]:
    """Return the modes that probe all instructions of a function, for each tool.

    Args:
        guest: the guest.
        probed: the function.
        name: beginning of the modes' names.
        effort: calls of a take of kinst.
        dear: calls of a take of the other tools.
    """
    every = _counting_all(guest, probed.function)
    hits, allowed_hits = sum(probed.all.values()), sum(probed.all[o] for o in probed.allowed)
    ways = [way for way in guest.ways(every) if way != "refused"]
    each = ", ".join(f"{n} by {way}" for way, n in Counter(ways).most_common())
    note = f"{hits} hits a call; of {len(ways)} sites {each}"
    events = Kprobes(guest, probed.function, probed.allowed, buffer=True)
    silent = Kprobes(guest, probed.function, probed.allowed)
    bpf = Bpf(guest, probed.function, probed.allowed)
    return [
        Mode(f"{name}kinst, @[probename] = count()", effort, hits,
             Kinst(guest, every, total).take, note),
        Mode(f"{name}kprobe events, trace buffer", dear, allowed_hits, events.take,
             f"{allowed_hits} hits a call", ONCE),
        Mode(f"{name}kprobe events, tracing off", dear, allowed_hits, silent.take, "", ONCE),
        Mode(f"{name}BPF as bpftrace's @ = count()", dear, allowed_hits, bpf.take, "", ONCE),
    ]  # fmt: skip


def groups_of(guest: Guest, probed: Place, getppid: Place) -> list[list[Mode]]:
    """Return all modes in three groups, in the order of their measurement: kinst's without traps,
    kinst's traps, those of the other tools. (Traps and kprobes leave addresses in the guest's
    memory, and kinst plants no run that memory points into.)"""
    modes = [
        *one_site_modes(guest, probed),
        *all_modes(guest, probed, ALL, LONG, DEAR),
        *all_modes(guest, getppid, GETPPID, SHORT, SHORT_DEAR),
    ]
    modes.sort(key=lambda mode: mode.effort.bare.command)  # modes of one effort follow each other
    return [
        [mode for mode in modes if mode.takes > ONCE],
        [mode for mode in modes if mode.takes == ONCE and mode.name.startswith("kinst")],
        [mode for mode in modes if mode.takes == ONCE and not mode.name.startswith("kinst")],
    ]
