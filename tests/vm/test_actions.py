"""Actions in a running kernel: stacks against the kernel's own unwinder."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from command import Row, guest_script, kinst

pytestmark = pytest.mark.vm

READS = 20
Stack = tuple[int, ...]


def kallsyms(text: str) -> dict[str, set[int]]:
    """Addresses by name, from /proc/kallsyms."""
    found: dict[str, set[int]] = defaultdict(set)
    for address, name in re.findall(r"^([0-9a-f]{16}) \w (\S+)$", text, re.M):
        found[name].add(int(address, 16))
    return found


def stacks_of_kernel(trace: str, comm: str) -> dict[str, Counter[Stack]]:
    """Stacks by event name, as the stacktrace trigger recorded them (options sym-addr)."""
    found: dict[str, Counter[Stack]] = defaultdict(Counter)
    event: dict[str, str] = {}
    mine, frames, who = False, [], ""
    for line in [*trace.splitlines(), "end"]:
        frame = re.match(r" => (\w+).*<([0-9a-f]{16})>", line)
        if frame:
            frames.append(int(frame[2], 16))
            if frame[1] == "asm_exc_int3":
                # Up to here it is the handler; then comes what the breakpoint interrupted,
                # one byte after its address.
                frames = []
            continue
        if mine:
            found[event[who]][(frames[0] - 1, *frames[1:])] += 1
        frames, mine = [], False
        head = re.match(r" *(\S.*)-(\d+) +\[\d+\].*: (\w+): \(", line)
        if head and head[1] == comm:
            event[head[2]] = head[3]
        head = re.match(r" *(\S.*)-(\d+) +\[\d+\].*: <stack trace>", line)
        if head and head[1] == comm:
            mine, who = True, head[2]
    return found


def stacks_of_kinst(out: str, symbols: dict[str, set[int]]) -> dict[str, list[Stack]]:
    """Stacks by the probe's function and offset."""
    found: dict[str, list[Stack]] = defaultdict(list)
    for name, text in re.findall(r"^at (\S+)\n((?: +.*\n)*)", out, re.M):
        frames = []
        for line in text.splitlines():
            function, _, offset = line.strip().partition("`")[2].partition("+")
            if offset.endswith("(inlined)") or function.endswith("(inlined)"):
                continue
            (address,) = symbols[function]
            frames.append(address + int(offset or "0", 16))
        found[name].append(tuple(frames))
    return found


def test_stacks_are_the_kernels(
    read_path: dict[str, list[Row]], reads: Path, tmp_path: Path
) -> None:
    """At every jump-planted instruction on the path of a read(2), on which a kprobe can stand
    too: kinst's stack() equals what the event's stacktrace trigger records."""
    sites = [
        row for rows in read_path.values() for row in rows if row.way == "jump" and row.offset > 0
    ][:60]
    lines = ["echo 0 > /proc/sys/debug/kprobes-optimization", "cd /sys/kernel/tracing || exit 1"]
    lines += ["echo 1 > options/sym-addr", "echo 8192 > buffer_size_kb"]
    for k, site in enumerate(sites):
        lines.append(f"echo 'p:k{k} {site.function}+{site.offset}' >> kprobe_events || exit 1")
        lines.append(f"echo stacktrace > events/kprobes/k{k}/trigger || exit 1")
    lines += [
        "echo 1 > events/kprobes/enable", f"reads {READS}", "echo 0 > events/kprobes/enable",
        "cat trace", "echo ==symbols", "cat /proc/kallsyms",
    ]  # fmt: skip
    script = guest_script(tmp_path, "stacks.sh", "\n".join(lines))
    program = ", ".join(site.name for site in sites)
    done = kinst(
        "-q", "-n",
        program + ' /execname == "reads"/ { printf("at %s+%s", probefunc, probename); stack(40); }',
        "-c", "stacks.sh", copy=[reads, script],
    ).good()  # fmt: skip
    trace, _, symbols = done.guest.partition("==symbols")
    theirs = stacks_of_kernel(trace, "reads")
    ours = stacks_of_kinst(done.out, kallsyms(symbols))
    compared = 0
    for k, site in enumerate(sites):
        # kinst was there first, and saw the program's start as well.
        own = Counter(ours[f"{site.function}+{site.offset}"])
        for stack, count in theirs[f"k{k}"].items():
            assert own[stack] >= count, (site, stack, own)
            compared += 1
    assert compared >= 20, (done, theirs)


def test_probes_inside_the_unwinder(reads: Path) -> None:
    """A trap at every instruction of functions that the unwinder goes through: nested firings
    are dropped and counted, and the stack is what it is without them."""
    program = """
        kinst::stack_trace_save_regs:, kinst::unwind_next_frame:, kinst::__unwind_start:
        { trace(1); }
        kinst::vfs_read:0 /execname == "reads"/ { @[stack(4), stackdepth] = count(); }
        END { printa("%k%d %@d\\n", @); }"""
    done = kinst(
        "-q", "-x", "plant=trap", "-n", program, "-c", f"reads {READS}", copy=[reads]
    ).good()  # fmt: skip
    frames = [line.strip() for line in done.out.splitlines() if "`" in line]
    stack = [frame.partition("+")[0] for frame in frames if not frame.endswith("(inlined)")]
    assert stack == [
        f"vmlinux`{name}"
        for name in ("vfs_read", "ksys_read", "do_syscall_64", "entry_SYSCALL_64_after_hwframe")
    ], done
    assert re.findall(r"^4 (\d+)$", done.out, re.M) == [str(READS)], done
    assert "it was already in a probe" in done.err


def test_stop_planted_stacks_are_the_same(read_path: dict[str, list[Row]], reads: Path) -> None:
    """What kinst unwinds with the kernel's tables is what the kernel's unwinder finds; and
    speculation, tracemem and the dynamic number of its bytes are the same in all ways."""
    program = """
        kinst::vfs_read:19, kinst::read_zero:8 /execname == "reads"/
        { stack(); trace(stackdepth); }
        kinst::read_zero:8 /execname == "reads"/ { tracemem(regs[R_RIP] + 8, 8, 4); }
        kinst::vfs_read:19 /execname == "reads"/ { self->s = speculation(); }
        kinst::vfs_read:19 /execname == "reads"/ { speculate(self->s); printf("kept %d\\n", pid); }
        kinst::read_zero:8 /self->s/ { commit(self->s); self->s = 0; }"""
    seen = {
        way: kinst(
            "-q", "-x", f"plant={way}", "-n", program, "-c", "reads 3",
            append="nokaslr", copy=[reads],
        ).good().out
        for way in ("jump", "trap", "stop")
    }  # fmt: skip
    plain = {way: re.sub(r"kept \d+", "kept", out) for way, out in seen.items()}
    assert plain["jump"].count("vmlinux`ksys_read+") == 6
    assert plain["jump"].count("kept") == 3
    rows = {row.offset: row.code for row in read_path["read_zero"]}
    code = b"".join(rows[at] for at in sorted(rows))[16:20]
    assert plain["jump"].count(f"0: {code.hex(' ')}  ") == 3
    assert plain["trap"] == plain["jump"] == plain["stop"]
