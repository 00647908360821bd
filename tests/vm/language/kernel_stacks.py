"""The kernel's own stacks at kprobes, beside kinst's at the same hits.

The guest's script sets kprobe events after kinst has planted.  Their stacktrace triggers record
the first hits of the traced program; the events themselves stay off, so that the trace holds only
stacks.  The first frame after the breakpoint's handler tells which kprobe a stack belongs to: it
is the interrupted address, one byte after the kprobe.
"""

from __future__ import annotations

import base64
import gzip
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.vm.command import ALONE, Result, Row, guest_script, kinst
from tests.vm.language.machine_code import pairs, reaches

HITS = 3  # stacks that the kernel records at each site
FRAMES = 60
Stack = tuple[int, ...]
# Addresses of each frame, by kinst's names: several functions may have the same name.
Named = tuple[frozenset[int], ...]
Pair = tuple[Row, Row]  # kinst's site, and the kprobe's


def choose_pairs(rows: Sequence[Row], sites: Sequence[Row]) -> list[Pair]:
    """Return those of these sites of one function, in this order, that have a place for a kprobe.

    The place is the instruction of a jump; for a trap it is an instruction before it in the same
    straight line, which runs exactly as often.

    Offset 0 is left out: a kprobe there becomes an ftrace probe, which finds the nop overwritten.
    So are instructions of one byte: the kernel unwinds from one byte after the kprobe, and if that
    is the next instruction, after a push, it looks for the frames in the wrong place.
    """
    before = {b.offset: a for a, b in pairs(rows)}
    chosen: list[Pair] = []
    for site in sites:
        probe = site if site.way == "jump" else before.get(site.offset)
        while probe is not None and len(probe.code) == 1:
            probe = before.get(probe.offset)
        if probe is None or probe.offset == 0 or site.way not in ("jump", "trap"):
            continue
        taken = {s.offset for s, _ in chosen} | {p.offset for _, p in chosen}
        trial = [*chosen, (site, probe)]
        planted = [s for s, _ in trial]
        if not {site.offset, probe.offset} & taken and all(
            reaches(rows, planted, p.offset) for _, p in trial
        ):
            chosen = trial
    return chosen


def draw(
    functions: Mapping[str, Sequence[Row]], hit: set[tuple[str, int]], wanted: int, seed: int
) -> list[Pair]:
    """Return random pairs from all functions, at sites that the program reaches."""
    chance = random.Random(seed)
    found: list[Pair] = []
    for rows in functions.values():
        sites = [row for row in rows if (row.function, row.offset) in hit]
        chance.shuffle(sites)
        found += choose_pairs(rows, sites[:40])
    chance.shuffle(found)
    return found[:wanted]


def kallsyms(text: str) -> dict[str, set[int]]:
    """Return addresses by name, from /proc/kallsyms."""
    found: dict[str, set[int]] = defaultdict(set)
    for address, name in re.findall(r"^([0-9a-f]{16}) \w (\S+)$", text, re.M):
        found[name].add(int(address, 16))
    return found


def stacks_of_kernel(trace: str) -> dict[tuple[int, int], list[Stack]]:
    """Return stacks in order, by interrupted address and thread (options sym-addr)."""
    found: dict[tuple[int, int], list[Stack]] = defaultdict(list)
    thread, frames, trapped = 0, [], False
    for line in [*trace.splitlines(), "end"]:
        frame = re.match(r" => (\S+).*<([0-9a-f]{16})>", line)
        if frame:
            frames.append(int(frame[2], 16))
            if frame[1].startswith("asm_exc_int3"):
                frames, trapped = [], True
            continue
        if trapped:
            found[frames[0] - 1, thread].append(tuple(frames[1:]))
        head = re.match(r" *\S.*-(\d+) +\[\d+\].*: <stack trace>", line)
        thread, frames, trapped = int(head[1]) if head else 0, [], False
    return found


def stacks_of_kinst(out: str, symbols: dict[str, set[int]]) -> dict[tuple[str, int], list[Named]]:
    """Return stacks in order, by the probe's function+offset and thread."""
    found: dict[tuple[str, int], list[tuple[int, Named]]] = defaultdict(list)
    pattern = r"^at (\S+) (\d+) (\d+)\n((?: +.*\n)*)"
    for name, thread, time, text in re.findall(pattern, out, re.M):
        frames = []
        for line in text.splitlines():
            if line.endswith("(inlined)"):
                continue
            function, _, offset = line.strip().partition("`")[2].partition("+")
            inside = int(offset or "0", 16)
            frames.append(frozenset(start + inside for start in symbols.get(function, ())))
        found[name, int(thread)].append((int(time), tuple(frames)))
    # A thread may have changed its CPU, and each CPU's records are separate.
    return {
        key: [stack for _, stack in sorted(rows, key=lambda row: row[0])]
        for key, rows in found.items()
    }


def same(named: Named, stack: Stack) -> bool:
    return len(named) == len(stack) and all(a in n for n, a in zip(named, stack, strict=True))


@dataclass(frozen=True)
class Compared:
    """Outcome of a comparison.

    Attributes:
        sites: sites at which stacks were compared.
        ways: how these sites are planted.
        refused: sites at which the kernel accepted no kprobe.
        missed: sites at which the kernel reports missed hits (a kprobe within another one's
            handler). There it has other hits than the first ones, and they are not compared.
        differences: (site, thread, number of the hit, ours, theirs).
    """

    sites: int
    stacks: int
    ways: dict[str, int]
    refused: int
    missed: int
    differences: list[tuple[str, int, int, Named, Stack]]
    done: Result


def script_of(chosen: Sequence[Pair], work: str, comm: str) -> str:
    lines = ["echo 0 > /proc/sys/debug/kprobes-optimization", "cd /sys/kernel/tracing || exit 1"]
    lines += ["echo 1 > options/sym-addr", "echo 16384 > buffer_size_kb"]
    for k, (_, probe) in enumerate(chosen):
        event = f"p:k{k} {probe.function}+{probe.offset}"
        trigger = f'stacktrace:{HITS} if comm == "{comm}"'
        lines.append(
            f"(echo '{event}' >> kprobe_events) 2>&- &&"
            f" echo '{trigger}' > events/kprobes/k{k}/trigger || echo refused k{k}"
        )
    lines += [
        work, "for k in events/kprobes/k*; do echo '!stacktrace' > $k/trigger; done",
        "cat trace", "echo ==profile", "cat kprobe_profile", "echo ==symbols",
        # The serial port passes on some 50 kB a second, and these are 6 MB.
        "gzip -c /proc/kallsyms | base64",
    ]  # fmt: skip
    return "\n".join(lines)


def compare(
    chosen: Sequence[Pair], work: str, comm: str, folder: Path, copy: Sequence[Path]
) -> Compared:
    """Trace `work` with kinst's probes and the kernel's at the same time (boots a guest)."""
    script = guest_script(folder, "stacks.sh", script_of(chosen, work, comm))
    program = ", ".join(site.name for site, _ in chosen)
    done = kinst(
        "-q", *ALONE, "-x", "bufsize=16m", "-x", "dynvarsize=4m", "-n",
        f'{program} /execname == "{comm}" && seen[id]++ < {2 * HITS}/'
        f'{{ printf("at %s+%s %d %d", probefunc, probename, tid, timestamp); stack({FRAMES}); }}',
        "-c", "stacks.sh", copy=[*copy, script], seconds=900,
    ).good()  # fmt: skip
    trace, _, text = done.guest.partition("==symbols")
    trace, _, profile = trace.partition("==profile")
    misses = re.findall(r"^ +k(\d+) +\d+ +(\d+) *$", profile, re.M)
    assert misses, done.guest
    missed = {int(k) for k, n in misses if int(n)}
    symbols = kallsyms(gzip.decompress(base64.b64decode(text)).decode())
    theirs, ours = stacks_of_kernel(trace), stacks_of_kinst(done.out, symbols)
    differences, ways, stacks, sites = [], {"jump": 0, "trap": 0}, 0, 0
    for k, (site, probe) in enumerate(chosen):
        if k in missed:
            continue
        (start,) = symbols[site.function]
        name, before = f"{site.function}+{site.offset}", stacks
        for (address, thread), behind in theirs.items():
            if address != start + probe.offset:
                continue
            mine = ours.get((name, thread), [])
            for number, (own, kernels) in enumerate(zip(mine, behind, strict=False)):
                stacks += 1
                wanted = (start + site.offset, *kernels)
                if not same(own, wanted):
                    differences.append((name, thread, number, own, wanted))
        sites += stacks > before
        ways[site.way] += stacks > before
    refused = len(re.findall(r"^refused k\d+$", trace, re.M))
    return Compared(sites, stacks, ways, refused, len(missed), differences, done)
