"""Figures of bench/hit_cost.py in the form that README.md and docs/benchmarks.md have."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.bars import Verdict
from bench.hit_table import Cost

ROOT = Path(__file__).resolve().parent.parent
_BEST = re.compile(r"kinst (jump|run|gate): @ = count\(\)")
_ROW = re.compile(r"^\| a counting hit, alone; .*$", re.M)

# For each row of the tables, in order: the end of a mode's name, and the title of the row.
_ROWS = (
    ("kinst jump: @ = count()", "**kinst, jump**: `@ = count()`"),
    ("kinst run: @ = count()", "**kinst, run**: `@ = count()`"),
    ("kinst trap: @ = count()", "**kinst, trap**: `@ = count()`"),
    ("== 77/, false", "kinst: a predicate on a register that is false"),
    ('"other"/, false', "kinst: a predicate on execname that is false"),
    ("]] = count()", "kinst: `@[regs[...]] = count()`"),
    (": printf time and two registers", "kinst: `printf` of the time and two registers"),
    ("kinst stop: @ = count()", "kinst, stop"),
    ("kprobe event, jump, trace buffer", "kprobe event, jump-optimised, into the trace buffer"),
    ("kprobe event, jump, tracing off", "kprobe event, jump-optimised, tracing off"),
    ("kprobe event, trap, trace buffer", "kprobe event, by a trap, into the trace buffer"),
    ("kprobe event, trap, tracing off", "kprobe event, by a trap, tracing off"),
    ("count(), jump", "BPF program as bpftrace makes of `@ = count()`, jump"),
    ("count(), trap", "BPF program as bpftrace makes of `@ = count()`, trap"),
    ("gdb breakpoint, ignored", "gdb breakpoint, ignored"),
)
_ALL = (
    (
        "kinst, @[probename] = count()",
        "**kinst**, all {hits} instructions that a call runs of {of}",
    ),
    ("kprobe events, trace buffer", "kprobe events on {hits} of them, into the trace buffer"),
    ("kprobe events, tracing off", "the same, tracing off"),
    ("BPF as bpftrace's @ = count()", "BPF programs on them"),
)


def section(
    isa: str, function: str, costs: Sequence[Cost], verdicts: Sequence[Verdict], told: str
) -> str:
    """Return the section of docs/benchmarks.md for an ISA: a table and the verdicts.

    Args:
        isa: name of the instruction set.
        function: function whose instruction was probed.
        costs: costs of modes.
        verdicts: verdicts on the figures.
        told: says when and how the figures were measured.
    """
    base = next(one.call_ns for one in costs if not one.hits)
    ours = next((one for one in costs if _BEST.fullmatch(one.name)), None)
    intro = (
        f"{told} The probes are on one instruction of `{function}`, which a one-byte read(2) of"
        f" /dev/zero runs; untraced, this call takes {base:,.0f} ns. The table shows the time that"
        " one hit adds: the median of the boots, and their range:"
    )
    lines = [
        *textwrap.wrap(intro, 104, break_long_words=False, break_on_hyphens=False),
        "",
        f"| {isa} | ns | boots | times what kinst's best way takes |",
        "|---|---:|---:|---:|",
    ]
    for end, title in _ROWS:
        for one in costs:
            if one.hits and one.name.endswith(end) and not one.name.startswith(("all", "getppid")):
                if end.startswith(":") and " trap:" in one.name:
                    continue
                times = f"{one.hit_ns / max(ours.hit_ns, 0.1):,.0f}" if ours else ""
                lines.append(_row(title, one, "" if one is ours else times))
    for prefix, of in (("all: ", f"`{function}`"), ("getppid: ", "getppid(2)")):
        for end, title in _ALL:
            for one in costs:
                if one.name == prefix + end:
                    name = title.format(hits=one.hits, of=of)
                    lines.append(_row(f"{name}, for each", one, ""))
    lines.append("")
    lines += [f"- {'met' if met else '**missed**'}: {text}" for text, met in verdicts]
    return "\n".join(lines) + "\n"


def _row(title: str, one: Cost, times: str) -> str:
    spread = f"{_ns(one.low)} to {_ns(one.high)}"
    ours = title.startswith("**")
    middle = f"**{_ns(one.hit_ns)}**" if ours else _ns(one.hit_ns)
    return f"| {title} | {middle} | {spread} | {times} |"


def _ns(value: float) -> str:
    if value < 20:
        return f"{max(value, 0):.1f}"
    return f"{value:,.0f}" if value < 1e6 else f"{round(value, -4):,.0f}"


def readme_row(costs: Sequence[Cost]) -> str:
    """Return the row of README.md's comparison; "" if the costs do not have its figures (only amd64
    has them)."""
    ns = {one.name: one.hit_ns for one in costs}
    names = (
        ("kinst jump: @ = count()", "all: kinst, @[probename] = count()"),
        ("BPF as bpftrace's @ = count(), jump", "all: BPF as bpftrace's @ = count()"),
        ("kprobe event, jump, trace buffer", "all: kprobe events, trace buffer"),
    )
    if not all(name in ns for pair in names for name in pair):
        return ""
    pairs = [f"{ns[alone]:,.0f}; {ns[every]:,.0f} ns" for alone, every in names]
    gdb = ns.get("gdb breakpoint, ignored")
    last = f"{gdb / 1e6:.1f} ms" if gdb else "not measured"
    what = "a counting hit, alone; of all in `vfs_read` ([measured](docs/benchmarks.md))"
    return f"| {what} | {' | '.join(pairs)} | not measured | {last} | |"


def write(isa: str, text: str, row: str) -> list[Path]:
    """Write a section and a row into the documents, and return the files that changed."""
    changed = []

    def put(path: Path, change: Callable[[str], str]) -> None:
        before = path.read_text()
        after = change(before)
        if after != before:
            path.write_text(after)
            changed.append(path)

    begin, end = f"<!-- bench/hit_cost.py --isa {isa} -->\n", f"<!-- end {isa} -->\n"
    span = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    put(ROOT / "docs/benchmarks.md", lambda old: span.sub(lambda _: begin + text + end, old))
    if row:
        put(ROOT / "README.md", lambda old: _ROW.sub(lambda _: row, old))
    return changed
