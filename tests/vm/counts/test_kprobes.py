"""kinst beside the kernel's own kprobe events, in the same run, at the same instructions.

The guest's command is a script that sets kprobe events after kinst has planted, runs the workload,
and prints the kernel's counts.  A kprobe can be set at an instruction with kinst's jump: to the
kernel this jump is part of its text.  It cannot be set on kinst's int3, because that would be two
breakpoints at one address.  At such a site the kprobe is on the instruction before, which runs
exactly as often: it falls through to the site, and nothing else leads there.  Jump optimisation of
kprobes is turned off, because the kernel would write its five-byte jump over instructions that
kinst has planted.

The guests have one CPU.  With two, QEMU's TCG may keep a translation of code over which the kernel
sets a kprobe, and the guest hangs, with or without kinst (bench/guest.py, GuestHangsError).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import Row, counts, kinst
from tests.vm.language.machine_code import branch_targets, only_compares, pairs, reaches

pytestmark = pytest.mark.vm

READS = 2000
SETUP = """
echo 0 > /proc/sys/debug/kprobes-optimization
cd /sys/kernel/tracing || exit 1
"""


def choose(rows: list[Row], wanted: int) -> list[tuple[Row, Row]]:
    """Return (site for kinst, instruction for the kprobe), jumps and traps in turn, in one
    function.

    Offset 0 is left out: a kprobe there becomes an ftrace probe, which finds the nop overwritten.
    """
    jumps = [(row, row) for row in rows if row.offset > 0 and row.way == "jump"]
    traps = [(b, a) for a, b in pairs(rows) if a.offset > 0 and b.way == "trap"]
    # kinst's int3 must not be on a kprobe, nor a kprobe on kinst's int3.
    chosen: list[tuple[Row, Row]] = []
    order = [one for both in zip(jumps, traps, strict=False) for one in both] + jumps + traps
    for site, probe in order:
        sites = [s for s, _ in chosen]
        probes = [p for _, p in chosen]
        if site in sites or site in probes or probe in probes or (probe in sites):
            continue
        trial = [*chosen, (site, probe)]
        planted = [s for s, _ in trial]
        if len(chosen) < wanted and all(reaches(rows, planted, p.offset) for _, p in trial):
            chosen = trial
    return chosen


def test_counts_of_twenty_instructions_of_five_functions(
    read_path: dict[str, list[Row]], reads: Path
) -> None:
    """Compare counts of each process.

    kinst counts from before the script runs, the kprobes from when they are set, but both see the
    whole life of the process that reads.
    """
    chosen = [pair for rows in read_path.values() for pair in choose(rows, 4)]
    assert len(chosen) >= 20 and len({s.function for s, _ in chosen}) >= 5
    ways = [site.way for site, _ in chosen]
    assert ways.count("jump") >= 5 and ways.count("trap") >= 5, ways
    lines = [SETUP]
    for k, (_, probe) in enumerate(chosen):
        lines.append(f"echo 'p:k{k} {probe.function}+{probe.offset}' >> kprobe_events || exit 1")
        lines.append(f"echo 'hist:keys=common_pid' > events/kprobes/k{k}/trigger || exit 1")
    lines += [
        "echo 1 > events/kprobes/enable", f"reads {READS} &", 'echo "pid $!"', "wait",
        "echo 0 > events/kprobes/enable", "cat kprobe_profile",
        "for k in events/kprobes/k*; do echo event ${k##*/}; cat $k/hist; done",
    ]  # fmt: skip
    program = ", ".join(site.name for site, _ in chosen)
    done = kinst(
        # In a chain control would skip the instruction itself, where the kernel's probe may be.
        "--cpus", "1", "-x", "plant=no-chain",
        "-q", "-n", program + " { @[pid, probefunc, probename] = count(); }",
        "-c", "\n".join(lines), copy=[reads],
    ).good()  # fmt: skip
    (pid,) = re.findall(r"^pid (\d+)$", done.guest, re.M)
    profile = {
        name: (int(hits), int(misses))
        for name, hits, misses in re.findall(r"^ *(k\d+) +(\d+) +(\d+)$", done.guest, re.M)
    }
    assert len(profile) == len(chosen), done
    found = counts(done.out)
    total = 0
    events = re.split(r"^event (k\d+)$", done.guest, flags=re.M)[1:]
    for name, text in zip(events[::2], events[1::2], strict=True):
        site, probe = chosen[int(name[1:])]
        per_pid = dict(re.findall(r"common_pid: +(\d+) } hitcount: +(\d+)", text))
        # The profile counts hits of all processes; its count of misses shows that none was lost.
        hits, misses = profile[name]
        assert misses == 0 and hits >= int(per_pid.get(pid, 0)), (name, text)
        # kinst, like the histogram, prints only keys that were counted.
        ours = found.get((pid, site.function, str(site.offset)), 0)
        assert ours == int(per_pid.get(pid, 0)), (site, probe, text, done.out)
        total += ours > 0
    # At least the entry code must have run, or the comparison means nothing.
    assert total >= 10, found


REGISTERS = (
    "rdi", "rsi", "rdx", "rcx", "rax", "rbx", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12",
    "r13", "r14", "r15",
)  # fmt: skip


def fetch(register: str) -> str:
    """Return a kprobe event's argument for the register."""
    name = register if register[1].isdigit() else register[1:]
    return f"{register}=%{name}:x64"


def sites_to_compare(rows: list[Row]) -> dict[str, tuple[Row, Row]]:
    """Return a jump site with the kprobe on it, and a trap site with the kprobe on a comparison
    before it.

    A comparison leaves every register but the flags as the site finds them.
    """
    jump = next((r, r) for r in rows if r.offset > 0 and r.way == "jump")
    trap = next(
        (b, a)
        for a, b in pairs(rows)
        if b.way == "trap" and a.offset > 0 and only_compares(a) and a not in jump
        and b.offset not in branch_targets(rows) and reaches(rows, [jump[0], b], a.offset)
    )  # fmt: skip
    return {"jump": jump, "trap": trap}


def test_registers_of_a_thousand_hits(
    read_path: dict[str, list[Row]], read_function: str, reads: Path
) -> None:
    """regs[] as kinst prints them equal the kprobe's arguments, hit by hit, in order.

    Each line names its site.
    """
    sites = sites_to_compare(read_path[read_function])
    arguments = " ".join(fetch(r) for r in REGISTERS)
    lines = [SETUP, "echo 4096 > buffer_size_kb"]
    for way, (_, probe) in sites.items():
        lines += [
            f"echo 'p:{way} {probe.function}+{probe.offset} {arguments}' >> kprobe_events || exit 1"
        ]
    lines += [
        "echo 1 > events/kprobes/enable", "reads 1000 &", 'echo "pid $!"', "wait",
        "echo 0 > events/kprobes/enable", "cat trace",
    ]  # fmt: skip
    form = "%d %s %d " + " ".join(["%x"] * len(REGISTERS))
    values = ", ".join(f"regs[R_{r.upper()}]" for r in REGISTERS)
    program = ", ".join(site.name for site, _ in sites.values())
    done = kinst(
        "--cpus", "1", "-x", "plant=no-chain",
        "-q", "-n", f'{program} {{ printf("{form}\\n", timestamp, probename, pid, {values}); }}',
        "-c", "\n".join(lines), copy=[reads],
    ).good()  # fmt: skip
    (pid,) = re.findall(r"^pid (\d+)$", done.guest, re.M)
    ways = {str(site.offset): way for way, (site, _) in sites.items()}
    ours = [line.split() for line in done.out.splitlines() if line]
    got = [(ways[w[1]], *(int(v, 16) for v in w[3:])) for w in ours if w[2] == pid]
    lines = re.findall(rf"-{pid} +\[\d+\] .*? (jump|trap): \(\S+\) (.*)$", done.guest, re.M)
    theirs = [
        (way, *(int(word.partition("=")[2], 16) for word in text.split())) for way, text in lines
    ]
    assert len(theirs) == 2000
    assert {one[0] for one in theirs} == {"jump", "trap"}
    assert got == theirs
    # read(2) was called with one byte: while the argument is still in rdx, it is 1.
    assert {one[1 + REGISTERS.index("rdx")] for one in got if one[0] == "jump"} == {1}
