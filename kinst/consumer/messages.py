"""Messages about a trace in dtrace(1)'s words, and the Lost and Fault events that contain such
messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kinst.consumer.rings import FaultEntry, SlotLosses
from kinst.core.layout import (
    FAULT_BADADDR,
    FAULT_BADALIGN,
    FAULT_DIVZERO,
    FAULT_ILLOP,
    FAULT_NOSCRATCH,
)
from kinst.core.probe import Probe
from kinst.core.units import counted
from kinst.events import Fault, Lost

# Name of each kind of fault (DTrace's without DTRACEFLT_), and dtrace(1)'s words for it.
_FAULTS = {
    FAULT_BADADDR: ("badaddr", "invalid address"),
    FAULT_BADALIGN: ("badalign", "invalid alignment"),
    FAULT_ILLOP: ("illop", "illegal operation"),
    FAULT_DIVZERO: ("divzero", "divide-by-zero"),
    FAULT_NOSCRATCH: ("noscratch", "out of scratch space"),
}

LIST_HEADER = f"{'ID':>5} {'PROVIDER':>10} {'MODULE':>17} {'FUNCTION':>33} NAME"


# Matches the probe descriptions at the start of a program. A slash begins a predicate, except in
# FILE:LINE, FILE:FUNCTION:LINE and FUNCTION+OFFSET/SIZE.
_DESCRIPTIONS = re.compile(
    r"(?:(?<![\w.])[-\w./]+\.[chS]:(?:[\w.@]+:|\*?:)?[0-9]+"
    r"|\+0[xX][0-9a-fA-F]+/0[xX][0-9a-fA-F]+|[^{/;])*"
)


def _description(program: str) -> str:
    match = _DESCRIPTIONS.match(program)
    return match.group() if match else program


def described(letter: str, text: str, file: str) -> str:
    """Return the name of one program option for the stability report: "script FILE" for -s, and
    "description DESCRIPTIONS" for other options (-n and the like). DESCRIPTIONS are the probe
    descriptions with which the option's argument begins.

    Args:
        letter: letter of the option (n, s, ...).
        text: the option's argument.
        file: name of the file of -s; not used for other options.
    """
    return f"script {file}" if letter == "s" else f"description {_description(text)}"


def description_matched(program: str, probes: int) -> str:
    """Return the message that says how many probes an option -n, -P, -m, -f or -i matched. As in
    dtrace(1), the message shows only the probe descriptions of the option's argument.

    Args:
        program: the option's argument.
        probes: number of probes.
    """
    name = _description(program)
    return f"dtrace: description '{name}' matched {counted(probes, 'probe')}"


def script_matched(file: str, probes: int) -> str:
    """Return the message that says how many probes the D file of an option -s matched."""
    return f"dtrace: script '{file}' matched {counted(probes, 'probe')}"


def list_row(probe: Probe) -> str:
    """Return the line of -l for a probe, without newline. LIST_HEADER is the line above the first
    probe's line.
    """
    name = probe.name
    return (
        f"{probe.id:5d} {name.provider:>10} {name.module:>17} {name.function:>33} {name.name}"
    ).rstrip()


# The tag that dtrace(1) prints with -xdroptags for each kind of Lost event (dt_handle.c).
_DROP_TAGS = {
    "record": "DTRACEDROP_PRINCIPAL",
    "aggregation": "DTRACEDROP_AGGREGATION",
    "dynamic": "DTRACEDROP_DYNAMIC",
    "dirty": "DTRACEDROP_DYNDIRTY",
    "rinsing": "DTRACEDROP_DYNRINSE",
    "speculative": "DTRACEDROP_SPEC",
    "speculation": "DTRACEDROP_SPECUNAVAIL",
    "error": "DTRACEDROP_DBLERROR",
}


def lost_events(losses: Sequence[SlotLosses], cpus: int, tags: bool = False) -> list[Lost]:
    """Return the Lost events, with their messages, for the losses that Rings.lost() has returned.

    Args:
        losses: losses of each CPU slot.
        cpus: number of CPUs of the target. Slots 0 to cpus - 1 are these CPUs; slot `cpus` is the
            host's.
        tags: whether each message has dtrace(1)'s tag for its kind of loss.
    """
    events = _lost_events(losses, cpus)
    if not tags:
        return events
    return [
        replace(one, text=one.text.replace(": ", f": [{_DROP_TAGS[one.kind]}] ", 1))
        if one.kind in _DROP_TAGS
        else one
        for one in events
    ]


def _lost_events(losses: Sequence[SlotLosses], cpus: int) -> list[Lost]:
    events = []
    for one in losses:
        number = one.slot if one.slot < cpus else None
        cpu = _place(one.slot, cpus)
        for kind, count, text in (
            ("record", one.records, f"dtrace: {counted(one.records, 'drop')} on {cpu}"),
            (
                "aggregation",
                one.aggregations,
                f"dtrace: {counted(one.aggregations, 'aggregation drop')} on {cpu}"
                " (a larger -x aggsize= loses fewer)",
            ),
            (
                "speculative",
                one.speculative,
                f"dtrace: {counted(one.speculative, 'speculative drop')} on {cpu}",
            ),
            (
                "speculation",
                one.unavailable,
                f"dtrace: {counted(one.unavailable, 'failed speculation')}"
                " (no speculative buffer available)",
            ),
            (
                "nested",
                one.nested,
                f"kinst: {counted(one.nested, 'probe')} dropped on {cpu}:"
                " it was already in a probe",
            ),
        ):
            if count:
                events.append(Lost(kind, count, number, text))
    double = sum(one.double for one in losses)
    if double:
        text = f"dtrace: {counted(double, 'error')} in ERROR probe enabling"
        events.append(Lost("error", double, None, text))
    for kind, count, where in (
        (
            "dynamic",
            sum(one.dynamic for one in losses),
            " (a larger -x dynvarsize= loses fewer)",
        ),
        ("dirty", sum(one.dirty for one in losses), " with non-empty dirty list"),
        ("rinsing", sum(one.rinsing for one in losses), " with non-empty rinsing list"),
    ):
        if count:
            text = f"dtrace: {counted(count, 'dynamic variable drop')}{where}"
            events.append(Lost(kind, count, None, text))
    return events


def _place(slot: int, cpus: int) -> str:
    return f"CPU {slot}" if slot < cpus else "the host"


def lost_faults(count: int, slot: int, cpus: int) -> Lost:
    """Return the Lost event for faults that kinst could not read, because later faults of the same
    CPU slot had overwritten them.

    Args:
        count: number of faults.
        slot: the CPU slot.
        cpus: number of CPUs of the target. Slots 0 to cpus - 1 are these CPUs; slot `cpus` is the
            host's.
    """
    text = f"kinst: {counted(count, 'more error')} on {_place(slot, cpus)}, before these"
    return Lost("message", count, slot if slot < cpus else None, text)


def missed_firings(probe: Probe, count: int, *, each_cpu: bool = False) -> Lost:
    """Return the Lost event for the firings of a timer probe that kinst missed.

    Args:
        each_cpu: whether so many are missing on each CPU; otherwise there are so many in all.
    """
    were = "was" if count == 1 else "were"
    each = " on each CPU" if each_cpu else ""
    text = (
        f"kinst: {counted(count, 'firing')} of {probe.name} {were} missed{each}:"
        " it could not be fired so often (a lower rate misses fewer)"
    )
    return Lost("timer", count, None, text)


def fault_event(entry: FaultEntry, probe: Probe, slot: int, cpus: int, reason: str = "") -> Fault:
    """Return the Fault event for a fault of a clause, with dtrace(1)'s message.

    Args:
        entry: the fault.
        probe: the probe whose clause failed.
        slot: the CPU slot of the fault.
        cpus: number of CPUs of the target. Slots 0 to cpus - 1 are these CPUs; slot `cpus` is the
            host's.
        reason: what may have made the clause fail; "" if that is not known.
    """
    kind, words = _FAULTS.get(entry.kind, ("unknown", "unknown fault"))
    if entry.kind in (FAULT_BADADDR, FAULT_BADALIGN):
        words += f" ({entry.value:#x})"
    where = f"action #{entry.action}" if entry.action > 0 else "predicate"
    text = (
        f"dtrace: error on enabled probe ID {entry.epid} (ID {probe.id}: {probe.name}):"
        f" {words} in {where}"
    )
    if reason:
        text += f" ({reason})"
    cpu = slot if slot < cpus else None
    return Fault(text, entry.epid, probe, entry.action, kind, entry.value, cpu, entry.time)
