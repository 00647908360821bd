"""What one hit of a probe costs: kinst, beside the kernel's own kprobes, BPF and gdb.

    .venv/bin/python bench/hit_cost.py [--isa ISA] [--passes N] [--minutes N] [--docs] ...

What is measured.  A guest program calls read(2) of one byte of /dev/zero in short rounds and
prints the ns of a call in each round.  A hit costs (ns of a call with the probe - ns without it)
/ hits in a call.  All probes are on one and the same instruction, 5 bytes or longer, run once by
each call, where the kernel can optimise its kprobes to jumps: it is looked for, not assumed.
(Kernels of arm64 and riscv64 have no such kprobes: there it is the function's first instruction
behind ftrace's that a kprobe can stand on and that does not branch; and no gdb is measured.)
For all instructions of one function, the same instructions are given to every tool.

What is done for fairness:
- One guest, one boot: the probes take turns, untraced rounds among them, and all of it again in
  every pass.  (gdb has a second guest of the same kind: a stub serves one debugger.  Its hits cost
  so much that nothing else matters.)
- The least of all rounds counts: whatever else the machine does only adds time, and a round is
  so short (a few ms) that some rounds are left alone.  The range is that of single passes.
- Every mode's hits are counted.  If one is missing, or there are more than the reads of the
  guest's shell explain, the benchmark fails: a probe that misses would be cheap.  (Not gdb's:
  that its breakpoint was hit shows in its cost.)
- kprobe events are given their best: no reader empties the trace buffer, an event has no
  arguments, and "tracing off" (only the event's own hit counter counts) is there too.
  (On riscv64 the buffer takes nothing even when tracing is on: tests/vm/kprobe_events.py.)
- BPF is what bpftrace compiles `@ = count()` to (tests/programs/bpfcount.c), without bpftrace.
- gdb has no symbols to load, and only passes the hits by (`ignore`), or runs an empty command.
- Differences of tens of ns between modes of kinst, now and then 100, are QEMU's: it looks
  addresses up in a small direct-mapped table, where a page that a probe touches may or may not
  meet one of the kernel's.  Figures of one run decide nothing so small.
- Modes of kinst that record print into memory.  They run three times, so that the ring is gone
  through more than once: the host gives a page of it memory when it is first written to, which
  costs a record 40 ns and is over soon.

Behind that come sites with no room for a jump, planted alone, and shares of ways
(bench/short_sites.py), and a verdict for each figure that is wanted (bench/bars.py).

It ends in about --minutes, with fewer passes and short sites where there is no time for all, and
says what it left out, as it does of what fails; its exit status is 1 then.  Where it is, it says
on stderr.  --docs puts the figures into docs/benchmarks.md and README.md; without it they are
printed in that form.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench import hit_docs, short_sites
from bench.bars import bars_of
from bench.budget import Budget
from bench.gdb_guest import measure_gdb
from bench.guest import Guest, Ran, compile_programs
from bench.hit_table import Cost, table_of
from bench.hit_tools import (
    OPTIMIZATION,
    TRACING,
    Bpf,
    Effort,
    Kinst,
    Kprobes,
    counts_of,
    distribution,
    records,
    rounds_of,
    total,
)
from kinst import KinstError, Program

PROBING = 1000  # reads for finding out what a read runs
OTHERS = 200  # reads that the guest's shell makes itself while a mode is measured, at most


QUICK = Effort(1000, 100)  # for what costs up to a few hundred ns
MIDDLE = Effort(1000, 30)
RECORDS = Effort(1000, 30, times=3)
LONG = Effort(100, 10)  # all instructions of a function
SHORT = Effort(100, 10, "getppid")  # of a short one
STOPS = Effort(10, 15)
UNTRACED_EVERY = 4  # modes


@dataclass(slots=True)
class Mode:
    """One way to probe.  take: run it once; (ns of a call in each round, hits seen).

    hits: in one call.  passes: ns of each round of each pass."""

    name: str
    effort: Effort
    hits: int
    take: Callable[[Effort], tuple[list[float], int]]
    note: str = ""
    passes: list[list[float]] = field(default_factory=list)
    failed: bool = False

    def run(self) -> None:
        rounds, hits = self.take(self.effort)
        wanted = self.effort.total * self.hits
        if not wanted <= hits <= wanted + OTHERS * max(self.hits, 1):
            raise KinstError(f"{self.name}: {hits} hits were counted, and there were {wanted}")
        self.passes.append(rounds)


# What is probed.


@dataclass(frozen=True, slots=True)
class Place:
    """The function that a read of /dev/zero runs, the chosen instruction, and all instructions:
    offset to hits in a call."""

    function: str
    offset: int
    text: str
    all: dict[int, int]


def find_place(guest: Guest) -> tuple[Place, Program]:
    """Where to probe, and the program that counts at all instructions of the function: what the
    read runs in the driver, or else vfs_read, whichever has an instruction to be found first."""
    named = guest.compile("kinst::*read*zero*:0, kinst::vfs_read:0 { @[probefunc] = count(); }")
    counts = counts_of(guest.trace(named, f"rounds {PROBING} 1"))
    functions = sorted((name for name, n in counts.items() if n >= PROBING), key="vfs_read".__eq__)
    for function in functions:
        every = guest.compile(f"kinst::{function}: {{ @[probename] = count(); }}")
        counts = counts_of(guest.trace(every, f"rounds {PROBING} 1"))
        hits = {int(k): n // PROBING for k, n in counts.items() if n >= PROBING}
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
            return Place(function, offset, once[offset], hits), every
    raise KinstError(f"the kernel wants no kprobe at any instruction of {functions}")


def optimises(guest: Guest) -> bool:
    """Whether this kernel can make jumps of kprobes."""
    return "yes" in guest.run(f"test -e {OPTIMIZATION} && echo yes || echo no")


# The tools.


def one_site_modes(guest: Guest, place: Place) -> list[Mode]:
    """All modes on the chosen instruction, untraced first."""
    site = f"kinst::{place.function}:{place.offset}"
    # The second and third argument of C functions: what a read goes to, and how much it is.
    second, third = guest.machine.argument_registers[1:3]
    record = f'{{ printf("%d %x %x\\n", timestamp, regs[{second}], regs[{third}]); }}'

    def kinst(
        name: str, effort: Effort, count: Callable[[Ran], int], text: str, plant: str = ""
    ) -> Mode:
        program = guest.compile(text, plant, records=count is records)
        return Mode(name, effort, 1, Kinst(guest, program, count).take)

    def kprobe(name: str, effort: Effort, **how: bool) -> Mode:
        return Mode(name, effort, 1, Kprobes(guest, place.function, (place.offset,), **how).take)

    def bpf(name: str, effort: Effort, optimise: bool) -> Mode:
        return Mode(name, effort, 1, Bpf(guest, place.function, (place.offset,), optimise).take)

    def untraced(effort: Effort) -> tuple[list[float], int]:
        return rounds_of(guest.run(effort.command)), 0

    count = f"{site} {{ @ = count(); }}"
    keyed = f"{site} {{ @[regs[{third}]] = count(); }}"
    quantized = f"{site} {{ @ = quantize(regs[{third}]); }}"
    other = f'{site} /execname == "other"/ {{ @ = count(); }}'
    never = f"{site} /regs[{third}] == 77/ {{ @ = count(); }}"
    recorded = f"{site} {record}"
    best = guest.compile(count)
    (way,) = guest.ways(best)
    modes = [
        Mode("untraced", QUICK, 0, untraced),
        Mode(f"kinst {way}: @ = count()", QUICK, 1, Kinst(guest, best, total).take),
        kinst("kinst stop: @ = count()", STOPS, total, count, "stop"),
        _never(kinst(f"kinst {way}: /regs[{third}] == 77/, false", QUICK, total, never)),
        _never(kinst(f'kinst {way}: /execname == "other"/, false', QUICK, total, other)),
        kinst(f"kinst {way}: @[regs[{third}]] = count()", QUICK, total, keyed),
        kinst(f"kinst {way}: @ = quantize(regs[{third}])", QUICK, distribution, quantized),
        kinst(f"kinst {way}: printf time and two registers", RECORDS, records, recorded),
        kprobe("kprobe event, trap, trace buffer", MIDDLE, buffer=True),
        kprobe("kprobe event, trap, tracing off", MIDDLE),
        bpf("BPF as bpftrace's @ = count(), trap", MIDDLE, False),
    ]
    if way != "trap":
        modes += [
            kinst(TRAP, MIDDLE, total, count, "trap"),
            kinst("kinst trap: printf time and two registers", MIDDLE, records, recorded, "trap"),
        ]  # fmt: skip
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
    """The predicate is false: nothing must have been counted."""
    inner = mode.take

    def take(effort: Effort) -> tuple[list[float], int]:
        rounds, hits = inner(effort)
        return rounds, effort.total if hits == 0 else hits

    mode.take = take
    return mode


def getppid_modes(guest: Guest) -> list[Mode]:
    """All instructions of the function behind getppid(2), untraced first."""

    def untraced(effort: Effort) -> tuple[list[float], int]:
        return rounds_of(guest.run(effort.command)), 0

    probing = Effort(PROBING, 1, SHORT.call)
    named = guest.compile("kinst::*sys_getppid:0 { @[probefunc] = count(); }")
    counts = counts_of(guest.trace(named, probing.command))
    function = next(name for name, n in counts.items() if n >= PROBING)
    every = guest.compile(f"kinst::{function}: {{ @[probename] = count(); }}")
    counts = counts_of(guest.trace(every, probing.command))
    hits = {int(k): n // PROBING for k, n in counts.items() if n >= PROBING}
    modes = all_modes(guest, Place(function, 0, "", hits), every, GETPPID, SHORT)
    return [Mode(f"{GETPPID}untraced", SHORT, 0, untraced), *modes]


def all_modes(guest: Guest, place: Place, every: Program, name: str, effort: Effort) -> list[Mode]:
    """All instructions of the function that every tool can probe."""
    # What a kprobe refuses is found by trying; kinst then counts at all it can, and each tool's
    # cost is by its own number of hits.
    offsets = tuple(sorted(place.all))
    tried = guest.run(
        f"cd {TRACING}\n"
        + "".join(
            f"echo 'p:k{o} {place.function}+{o}' >>kprobe_events 2>/dev/null || echo refused {o}\n"
            for o in offsets
        )
        + "for e in events/kprobes/k*; do echo 1 2>/dev/null >$e/enable"
        + " || echo refused ${e##*/k}; done\n"
        + "echo 0 >events/kprobes/enable; echo >kprobe_events; usleep 100000\n"
    )
    refused = {int(o) for o in re.findall(r"^refused (\d+)$", tried, re.M)}
    allowed = tuple(o for o in offsets if o not in refused)
    hits, allowed_hits = sum(place.all.values()), sum(place.all[o] for o in allowed)
    ways = [way for way in guest.ways(every) if way != "refused"]
    jumps = ways.count("jump")
    note = f"{hits} hits a call; {jumps} of {len(ways)} sites are jumps"
    events = Kprobes(guest, place.function, allowed, buffer=True)
    silent = Kprobes(guest, place.function, allowed)
    bpf = Bpf(guest, place.function, allowed)
    return [
        Mode(f"{name}kinst, @[probename] = count()", effort, hits,
             Kinst(guest, every, total).take, note),
        Mode(f"{name}kprobe events, trace buffer", effort, allowed_hits, events.take,
             f"{allowed_hits} hits a call"),
        Mode(f"{name}kprobe events, tracing off", effort, allowed_hits, silent.take),
        Mode(f"{name}BPF as bpftrace's @ = count()", effort, allowed_hits, bpf.take),
    ]  # fmt: skip


# The answer.


def cost(mode: Mode, untraced: Mode) -> Cost:
    base = min(map(min, untraced.passes))
    least = min(map(min, mode.passes))
    per = max(mode.hits, 1)
    single = [
        (min(own) - min(bare)) / per
        for own, bare in zip(mode.passes, untraced.passes, strict=False)
    ]
    middle = statistics.median(ns for own in mode.passes for ns in own)
    median_base = statistics.median(ns for bare in untraced.passes for ns in bare)
    return Cost(
        mode.name, mode.hits, least, (least - base) / per, min(single), max(single),
        (middle - median_base) / per, mode.note,
    )  # fmt: skip


JUMP, TRAP = "kinst jump: @ = count()", "kinst trap: @ = count()"
JUMP_EVENT, TRAP_EVENT = "kprobe event, jump, trace buffer", "kprobe event, trap, trace buffer"
ALL, GETPPID = "all: ", "getppid: "
PEERS = {
    "kprobe jump": JUMP_EVENT,
    "kprobe trap": TRAP_EVENT,
    "BPF jump": "BPF as bpftrace's @ = count(), jump",
    "BPF trap": "BPF as bpftrace's @ = count(), trap",
    "gdb": "gdb breakpoint, ignored",
}
ALL_PEERS = {
    "kprobes": "kprobe events, trace buffer",
    "tracing off": "kprobe events, tracing off",
    "BPF": "BPF as bpftrace's @ = count()",
}


def show(costs: Sequence[Cost], place: Place, passes: int) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=140)
    method = f"least of all rounds of {passes} passes; x: how many times cheaper than"
    one_site = [one for one in costs if not one.name.startswith((ALL, GETPPID))]
    title = f"ns per hit at {place.function}+{place.offset} ({place.text}); {method}"
    there = {one.name for one in costs}
    peers = {name: peer for name, peer in PEERS.items() if peer in there}
    console.print(table_of(title, one_site, peers))
    for prefix, what in ((ALL, place.function), (GETPPID, "the function behind getppid(2)")):
        every = [one for one in costs if one.name.startswith(prefix)]
        title = f"ns per hit, all instructions of {what}; {method}"
        peers = {name: prefix + peer for name, peer in ALL_PEERS.items()}
        console.print(table_of(title, every, peers))
    for one in costs:
        if one.note:
            console.print(f"{one.name}: {one.note}", highlight=False)


def targets(costs: Sequence[Cost]) -> list[tuple[str, bool]]:
    """How kinst compares with kprobe events, and whether that is as wanted: by jumps where this ISA
    has both tools'."""
    ns = {one.name: one.hit_ns for one in costs}
    found = []
    if JUMP in ns:
        peer = JUMP_EVENT if JUMP_EVENT in ns else TRAP_EVENT
        text = f"kinst jump {ns[JUMP]:,.0f} ns, {peer} {ns[peer]:,.0f} ns"
        met = ns[peer] >= 10 * ns[JUMP]
        found.append((f"{text}: {ns[peer] / ns[JUMP]:.1f} times cheaper, at least 10 wanted", met))
    text = f"kinst trap {ns[TRAP]:,.0f} ns, {TRAP_EVENT} {ns[TRAP_EVENT]:,.0f} ns: not dearer"
    return [*found, (text, ns[TRAP] <= ns[TRAP_EVENT])]


def one_pass(modes: Sequence[Mode], budget: Budget, number: int) -> None:
    """Run every mode once; the first, untraced, again and again in between.  A mode that fails
    is left out from then on."""
    untraced, *others = modes
    rounds: list[float] = []
    for place, mode in enumerate(others):
        if place % UNTRACED_EVERY == 0:
            rounds += untraced.take(untraced.effort)[0]
        if mode.failed:
            continue
        budget.say(f"pass {number}: {mode.name}")
        try:
            mode.run()
        except KinstError as error:
            mode.failed = True
            budget.failed(f"{mode.name}: {error}")
    untraced.passes.append(rounds)


# Parts of the time by whose end the passes and the short sites have to be over.
PASSES_END, END = 0.5, 0.95


@dataclass(slots=True)
class Found:
    """passes: how many there were.  alone, shares: of short sites."""

    place: Place
    passes: int
    costs: list[Cost]
    alone: list[short_sites.Cost] = field(default_factory=list)
    shares: short_sites.Shares | None = None


def measure(passes: int, isa: str, drawn: int, functions: int, budget: Budget) -> Found:
    """Boot, measure in turns, and work the costs out.  drawn: of short sites; functions: for
    shares.  What fails later than the first pass is told and left out.  Raises KinstError."""
    with tempfile.TemporaryDirectory() as folder:
        budget.say("compile the guest's programs, boot")
        copies = compile_programs(("rounds", "bpfcount"), Path(folder), isa)
        modes, short, done = list[Mode](), list[Mode](), 0
        guest = Guest(copies, isa)
        try:
            budget.say("look for an instruction that a kprobe can stand on")
            place, every = find_place(guest)
            modes = [*one_site_modes(guest, place), *all_modes(guest, place, every, ALL, LONG)]
            short = getppid_modes(guest)
            longest = 0.0
            while done < passes and not (done and budget.over(PASSES_END, longest)):
                before = budget.used()
                one_pass(modes, budget, done + 1)
                one_pass(short, budget, done + 1)
                longest, done = max(longest, budget.used() - before), done + 1
        except KinstError as error:
            if not done:
                raise
            budget.failed(f"pass {done + 1}: {error}")
        finally:
            guest.close()
        if done < passes:
            budget.failed(f"{passes - done} of {passes} passes: no time")
        found = Found(place, done, [cost(m, modes[0]) for m in modes if m.passes])
        found.costs += [cost(m, short[0]) for m in short if m.passes]
        if isa == "amd64":
            _debug(found, copies, budget)
        if drawn:
            _draw(found, copies, isa, drawn, functions, budget)
    return found


def _debug(found: Found, copies: Sequence[str], budget: Budget) -> None:
    """What gdb's breakpoints cost."""
    base = found.costs[0].call_ns
    try:
        budget.say("gdb, in a guest of its own")
        told = measure_gdb(copies, found.place.function, found.place.offset, STOPS.command)
    except KinstError as error:
        budget.failed(f"gdb: {error}")
        return
    for name, text in told.items():
        rounds = rounds_of(text)
        each = [ns - base for ns in rounds]
        middle = statistics.median(each)
        found.costs.append(Cost(name, 1, min(rounds), min(each), min(each), max(each), middle, ""))


def _draw(
    found: Found, copies: Sequence[str], isa: str, drawn: int, functions: int, budget: Budget
) -> None:
    """Short sites, and shares of ways, in a guest of their own."""
    try:
        budget.say("short sites, in a guest of their own")
        guest = Guest(copies, isa)
        try:
            budget.say("shares of ways")
            found.shares = short_sites.shares(guest, short_sites.ROOM[isa], functions, 1)
            budget.say("look for what a call runs")
            for one in short_sites.measure_each(guest, isa, drawn, 1):
                found.alone.append(one)
                if len(found.alone) % 10 == 0:
                    budget.say(f"{len(found.alone)} short sites")
                if budget.over(END):
                    budget.failed(f"{drawn - len(found.alone)} of {drawn} short sites: no time")
                    return
        finally:
            guest.close()
    except (KinstError, KeyboardInterrupt) as error:  # what there is already is shown
        budget.failed(f"short sites: {error or 'interrupted'}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What one hit of a probe costs.")
    parser.add_argument("--isa", default="amd64", help="the ISA of the guest (amd64)")
    parser.add_argument("--sites", type=int, default=100, help="short sites, drawn (100; 0: none)")
    parser.add_argument("--shares", type=int, default=200, help="functions for shares (200)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--passes", type=int, default=3, help="how often all is measured (3)")
    parser.add_argument("--minutes", type=float, default=8, help="end in about so many (8)")
    parser.add_argument("--docs", action="store_true", help="put the figures into README and docs")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    budget, load = Budget(60 * options.minutes), os.getloadavg()
    try:
        found = measure(options.passes, options.isa, options.sites, options.shares, budget)
    except KinstError as error:
        print(f"hit_cost: {error}", file=sys.stderr)
        return 1
    costs, place = found.costs, found.place
    show(costs, place, found.passes)
    if found.alone:
        short_sites.show(found.alone, found.shares)
    ns = {one.name: one.hit_ns for one in costs}
    wanted = [*targets(costs), *bars_of(options.isa, ns, found.alone, found.shares)]
    for text, met in wanted:
        print(f"{'met   ' if met else 'MISSED'} {text}")
    for text in budget.failures:
        print(f"not measured: {text}")
    after = os.getloadavg()
    loads = f"{load[0]:.1f} before, {after[0]:.1f} after"
    print(
        f"{budget.used():.0f} s; load of this machine's {os.cpu_count()} CPUs: {loads} "
        "(2 or less is this benchmark's own)"
    )
    told = (
        f"`bench/hit_cost.py --isa {options.isa} --passes {found.passes}` on "
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs with loads of {loads}."
    )
    text = hit_docs.section(options.isa, place.function, costs, wanted, told)
    row = hit_docs.readme_row(costs)
    if options.docs:
        print("\n".join(f"written: {path}" for path in hit_docs.write(options.isa, text, row)))
    else:
        print(f"\n{text}{row}")
    if options.json:
        figures = {
            "isa": options.isa,
            "function": place.function, "offset": place.offset, "instruction": place.text,
            "load": [load[0], after[0]], "costs": [asdict(one) for one in costs],
            "short": [asdict(one) for one in found.alone],
        }  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(bool(budget.failures) or (options.check and not all(met for _, met in wanted)))


if __name__ == "__main__":
    sys.exit(main())
