"""The sentences around the data, in dtrace(1)'s words.  Nothing is printed here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kinst.consumer.rings import Lost
from kinst.core.layout import (
    FAULT_BADADDR,
    FAULT_BADALIGN,
    FAULT_DIVZERO,
    FAULT_ILLOP,
    FAULT_NOSCRATCH,
)
from kinst.core.probe import Probe

_FAULTS = {
    FAULT_BADADDR: "invalid address",
    FAULT_BADALIGN: "invalid alignment",
    FAULT_ILLOP: "illegal operation",
    FAULT_DIVZERO: "divide-by-zero",
    FAULT_NOSCRATCH: "out of scratch space",
}

LIST_HEADER = f"{'ID':>5} {'PROVIDER':>10} {'MODULE':>17} {'FUNCTION':>33} NAME"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _description(program: str) -> str:
    return re.split("[{/;]", program, maxsplit=1)[0]


def described(letter: str, text: str, file: str) -> str:
    """What the report of stability calls one -n, -s, ...: letter, text, file of ProgramText."""
    return f"script {file}" if letter == "s" else f"description {_description(text)}"


def description_matched(program: str, probes: int) -> str:
    """For -n, -P, -m, -f and -i; program: the option's argument, of which dtrace shows what
    comes before the predicate or the actions."""
    name = _description(program)
    return f"dtrace: description '{name}' matched {_plural(probes, 'probe')}"


def script_matched(file: str, probes: int) -> str:
    """For -s."""
    return f"dtrace: script '{file}' matched {_plural(probes, 'probe')}"


def list_row(probe: Probe) -> str:
    """A row of -l, without its newline; LIST_HEADER goes above."""
    name = probe.name
    return (
        f"{probe.id:5d} {name.provider:>10} {name.module:>17} {name.function:>33} {name.name}"
    ).rstrip()


def lost_messages(lost: Sequence[Lost], cpus: int) -> list[str]:
    """What to tell of Rings.lost(); cpus: of the target (slot `cpus` is the host's)."""
    messages = []
    for one in lost:
        cpu = f"CPU {one.slot}" if one.slot < cpus else "the host"
        if one.records:
            messages.append(f"dtrace: {_plural(one.records, 'drop')} on {cpu}")
        if one.aggregations:
            messages.append(f"dtrace: {_plural(one.aggregations, 'aggregation drop')} on {cpu}")
        if one.speculative:
            messages.append(f"dtrace: {_plural(one.speculative, 'speculative drop')} on {cpu}")
        if one.unavailable:
            failed = _plural(one.unavailable, "failed speculation")
            messages.append(f"dtrace: {failed} (no speculative buffer available)")
        if one.nested:
            probes = _plural(one.nested, "probe")
            messages.append(f"kinst: {probes} dropped on {cpu}: it was already in a probe")
    double = sum(one.double for one in lost)
    if double:
        messages.append(f"dtrace: {_plural(double, 'error')} in ERROR probe enabling")
    for count, where in (
        (sum(one.dynamic for one in lost), ""),
        (sum(one.dirty for one in lost), " with non-empty dirty list"),
        (sum(one.rinsing for one in lost), " with non-empty rinsing list"),
    ):
        if count:
            messages.append(f"dtrace: {_plural(count, 'dynamic variable drop')}{where}")
    return messages


def more_faults(count: int, slot: int, cpus: int) -> str:
    """For errors whose own message came too late to be told; slot, cpus: as in lost_messages()."""
    where = f"CPU {slot}" if slot < cpus else "the host"
    return f"kinst: {_plural(count, 'more error')} on {where}, before these"


def fault_message(epid: int, probe: Probe, action: int, kind: int, value: int) -> str:
    """What dtrace says when an action faults.  kind: FAULT_*; value: the bad address."""
    what = _FAULTS.get(kind, "unknown fault")
    if kind in (FAULT_BADADDR, FAULT_BADALIGN):
        what += f" ({value:#x})"
    where = f"action #{action}" if action > 0 else "predicate"
    return (
        f"dtrace: error on enabled probe ID {epid} (ID {probe.id}: {probe.name}): {what} in {where}"
    )
