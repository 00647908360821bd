"""What a hit costs by --live and by --vm, in the same kernel on the same emulated processor.

    .venv/bin/python bench/live_cost.py [--boots N]

Both are guests of QEMU's.  In one, kinst traces from outside; in the other it runs inside, as root,
on this machine's files, and plants by its module.  A guest program calls read(2) in short rounds
and prints the ns of a call in each; a mode's figure is its least round, less the least untraced
one of that guest: whatever else runs only ever adds time.  Modes go by turns, and boots too.
Each boot's figures are printed, and at the end the least of all boots beside each other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


import kinst
from bench.guest import compile_programs
from bench.hit_tools import rounds_of
from tools.live_guest import PROCESSOR, set_up

CALLS, ROUNDS, LAPS = 50, 400, 5
MODES: dict[str, tuple[str, dict[str, str]]] = {
    "untraced": ("tick-9999s { }", {}),
    "jump": ("kinst::vfs_read:0 { @ = count(); }", {"plant": "jump"}),
    "trap": ("kinst::vfs_read:0 { @ = count(); }", {"plant": "trap"}),
    "all of vfs_read": ("kinst::vfs_read: { @[probename] = count(); }", {}),
}


def measured(machine: kinst.Machine, rounds: str) -> dict[str, float]:
    """The least ns of a call in each mode."""
    least = dict.fromkeys(MODES, math.inf)
    command = f"{rounds} {CALLS} {ROUNDS}"
    for _ in range(LAPS):
        for mode, (text, options) in MODES.items():
            run = machine.run(text, f"{command}; {command}", options=options)
            least[mode] = min(least[mode], *rounds_of(run.output.decode()))
    return least


def by_vm(program: Path) -> dict[str, float]:
    with kinst.boot(copies=[program], qemu_args=["-cpu", PROCESSOR], memory="3g") as machine:
        return measured(machine, program.name)


def by_live(program: Path) -> dict[str, float]:
    """In a guest that runs this file with --inside."""
    debug = kinst.kernel_files().debug
    release = Path(debug).name.removeprefix("vmlinux-")
    with tempfile.TemporaryDirectory(prefix="kinst-live-cost-") as name:
        folder = Path(name)
        inside = f"{sys.executable} {Path(__file__).resolve()} --inside {debug} {program}"
        lines, cache = set_up(release)
        (folder / "script").write_text(f"{lines}{inside} >{folder}/out\n")
        with kinst.boot(
            root="/", writable=[folder, cache], memory="3g", qemu_args=["-cpu", PROCESSOR]
        ) as machine:
            machine.run("tick-9999s { }", f"sh {folder}/script")
        found: dict[str, float] = json.loads((folder / "out").read_text())
        return found


def costs(least: dict[str, float]) -> dict[str, float]:
    """ns that tracing adds to a call."""
    return {mode: round(ns - least["untraced"], 1) for mode, ns in least.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boots", type=int, default=3)
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.inside:
        with kinst.live(debug=words.inside[0]) as machine:
            print(json.dumps(measured(machine, words.inside[1])))
        return
    folder = tempfile.TemporaryDirectory(prefix="kinst-live-cost-")
    (made,) = compile_programs(["rounds"], Path(folder.name))
    program = Path(made)
    best = {way: dict.fromkeys(MODES, math.inf) for way in ("vm", "live")}
    for boot in range(words.boots):
        for way, measure in (("vm", by_vm), ("live", by_live)):
            found = measure(program)
            best[way] = {mode: min(ns, found[mode]) for mode, ns in best[way].items()}
            print(f"boot {boot + 1}, --{way}:", costs(found), f"load {os.getloadavg()[0]:.1f}",
                  flush=True)  # fmt: skip
    vm, live = costs(best["vm"]), costs(best["live"])
    for mode in list(MODES)[1:]:
        print(f"{mode}: --vm {vm[mode]} ns, --live {live[mode]} ns, {live[mode] / vm[mode]:.2f}")


if __name__ == "__main__":
    main()
