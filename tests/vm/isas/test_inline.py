"""Contract of an instruction set: inline functions and fbt.

The places of copies come from the debug information alone, and the counts of their entries from
the kernel's own kprobe events; tests/vm/language/test_inline.py tests more on amd64.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kinst.core.paths import cache_folder
from kinst.image.dwarf.index import open_index
from tests.vm.command import ALONE, Row, guest_script, kinst, listed
from tests.vm.isa_guest import Guest
from tests.vm.isas.test_kprobes import runs_with
from tests.vm.kprobe_events import script, seen
from tests.vm.language.test_inline import LOOKUP, expansions, in_flight, tables

pytestmark = pytest.mark.vm

SEED = 20261121
NAMES = 110  # inline functions, drawn from those of find(1)'s path
# At least so many of those that run can have kprobes beside kinst's patches: few if few are jumps.
WITH_KPROBES = {"amd64": 5, "arm64": 10, "riscv64": 10}
COPIES = 4  # of the functions whose entries are traps, to have few callers to look at
Site = tuple[str, int]


def drawn(guest: Guest) -> list[str]:
    index = open_index(guest.kernel.debug, cache_folder())
    callers = set(LOOKUP.split())
    names = sorted(
        name
        for name in index.inline_names()
        if 1 <= len(index.copies(name)) <= 12
        and any(c.caller in callers and any(a < b for a, b in c.ranges) for c in index.copies(name))
    )
    return sorted(random.Random(SEED).sample(names, min(NAMES, len(names))))


def on_jumps(first_sites: dict[str, list[Site]], shown: list[Row]) -> dict[Site, Site]:
    """Return where a kprobe can count a site of kinst's: on its jump, unless ftrace keeps it
    away."""
    jumps = {(r.function, r.offset) for r in shown if r.way == "jump" and r.offset >= 16}
    return {site: site for sites in first_sites.values() for site in sites if site in jumps}


def beside_traps(
    guest: Guest, first_sites: dict[str, list[Site]], shown: list[Row]
) -> dict[Site, Site]:
    """Return where kprobes can count traps: at another instruction of the site's straight line."""
    planted = {(row.function, row.offset) for row in shown}
    few = {s for sites in first_sites.values() if len(sites) <= COPIES for s in sites}
    rows = guest.rows(sorted({function for function, _ in few}))
    found = dict[Site, Site]()
    for function, offset in few:
        if function in rows and any(row.offset == offset for row in rows[function]):
            for row in runs_with(guest.isa, rows[function], offset):
                if row.offset >= 16 and (function, row.offset) not in planted:
                    found[function, offset] = (function, row.offset)
    return found


@pytest.mark.parametrize(
    "guest",
    ["riscv64", *(pytest.param(isa, marks=pytest.mark.slow) for isa in ("amd64", "arm64"))],
    indirect=True,
)
def test_entries_equal_kprobes_and_returns(guest: Guest, tmp_path: Path) -> None:
    names = drawn(guest)
    words = [w for n in names for w in ("-n", f"kinst::{n}:entry {{}}")]
    first = kinst(f"--vm={guest.isa}", "-d", "-l", "-v", "-Z", *ALONE, *words).good()
    found = {name: sites for name, sites in expansions(first, names) if sites}
    shown = listed(first.out)
    kprobes = on_jumps(found, shown) or beside_traps(guest, found, shown)
    sites = sorted(kprobes)
    events = script(
        {f"k{k}": "{}+{}".format(*kprobes[site]) for k, site in enumerate(sites)},
        "find /sys/kernel/mm /proc/self -name nothing",
    )
    text = "".join(
        f'kinst::{n}:entry {{ @E["{n}"] = count(); @p["{n}", pid] = count(); }}\n'
        f'kinst::{n}:return {{ @R["{n}"] = count(); }}\n'
        for n in names
    )
    program = tmp_path / "entries.d"
    program.write_text(
        text + 'END { printa("E %s %@d\\n", @E); printa("R %s %@d\\n", @R);'
        ' printa("P %s %d %@d\\n", @p); }\n'
    )
    done = guest.trace(
        # In a chain control would skip the instructions that have the kernel's probes.
        "-x", "plant=no-chain",
        "-q", "-Z", "-s", str(program), "-c", "entries.sh",
        copy=[
            guest.program("kprobes", guest.isa), guest_script(tmp_path, "entries.sh", events),
        ],
    )  # fmt: skip
    ours, theirs = tables(done.out), seen(done.guest)
    counted = {
        site: theirs.events[f"k{k}"] for k, site in enumerate(sites) if f"k{k}" in theirs.events
    }
    fitting = {n: places for n, places in found.items() if counted.keys() >= set(places)}
    ran = 0
    for name, places in fitting.items():
        hits = sum(counted[site] for site in places)
        assert ours.get(("P", name, theirs.pid), 0) == hits, (name, places)
        ran += hits > 0
    assert ran >= WITH_KPROBES[guest.isa], (len(fitting), len(sites), len(counted))
    # Returns of all that ran; few calls were between entry and return at the start or the end.
    entered = [n for n in names if ("E", n) in ours]
    assert len(entered) >= 30, len(entered)
    apart = {n: ours["E", n] for n in entered if in_flight(n, ours)}
    assert not {n for n in apart if abs(in_flight(n, ours)) > 2}, apart
    assert len(apart) <= len(entered) // 10, apart
