"""Measure how long --live holds a CPU while it plants twelve thousand sites: at each write of text,
and each time that it stops all CPUs, by the guest's own clock.

    .venv/bin/python bench/live_hold.py [--priority]

A QEMU guest has this machine's files. In the guest kinst plants and unplants three times by --live,
with both CPUs busy (the check `many` of tests/vm/live/live_in_guest.py). The guest is also traced
from outside, by --vm, at the kernel functions that kinst's module calls to write text and to stop
all CPUs. --priority: once the guest is up, nothing else runs on this machine's CPUs while the guest
wants them. Otherwise a CPU of the guest that waits for the guest's other CPU also waits for the
host.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kinst
from bench.budget import go_first
from bench.guest import compile_programs
from tools.live_guest import PROCESSOR, set_up

CHECKOUT = Path(__file__).resolve().parent.parent
SCRIPT = "-m tests.vm.live.live_in_guest"
# The functions that hold a CPU: the first writes text, the second stops all CPUs.
FUNCTIONS = ("text_poke", "stop_machine_cpuslocked")
CLAUSES = """
    fbt::{0}:entry {{ self->begun = timestamp; }}
    fbt::{0}:return /self->begun/ {{
        this->us = (timestamp - self->begun) / 1000;
        @calls[probefunc] = count();
        @longest[probefunc] = max(this->us);
        @us[probefunc] = quantize(this->us);
        self->begun = 0;
    }}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--priority", action="store_true", help="go before all other processes")
    priority = parser.parse_args().priority
    debug = kinst.kernel_files().debug
    lines, cache = set_up(Path(debug).name.removeprefix("vmlinux-"))
    program = "".join(CLAUSES.format(name) for name in FUNCTIONS)
    with tempfile.TemporaryDirectory(prefix="kinst-live-hold-") as name:
        folder = Path(name)
        made = compile_programs(["reads", "live_requests", "lateness"], folder)
        words = (sys.executable, SCRIPT, debug, 2000, *made, "many")
        line = f"{' '.join(map(str, words))} >{folder}/out 2>&1"
        (folder / "script").write_text(f"{lines}cd {CHECKOUT}\n{line}\n")
        with kinst.boot(
            root="/", writable=[folder, cache], memory="3g", qemu_args=["-cpu", PROCESSOR]
        ) as machine:
            if priority:
                go_first(guests=True)
            run = machine.run(program, f"sh {folder}/script")
        print((folder / "out").read_text().strip())
    print(f"load {os.getloadavg()[0]:.1f}")
    for function in FUNCTIONS:
        calls, longest = (
            run.aggregations[table].get((function,)) for table in ("calls", "longest")
        )
        print(f"{function}: {calls} calls, the longest took {longest} us")
        buckets = run.aggregations["us"].get((function,))
        for bucket in buckets if isinstance(buckets, tuple) else ():
            print(f"  {bucket.low:>6} to {bucket.high} us: {bucket.count}")


if __name__ == "__main__":
    main()
