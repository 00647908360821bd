"""Measure how long tools take to find the copies of an inline function, each in a new process.

    .venv/bin/python bench/inline_lookup.py [--runs N] [--file VMLINUX] [FUNCTION ...]

The tools are inlinecall with its index (making the index is timed separately, with numba's compiled
code in the cache), `perf probe -D`, gdb's `break` (which lists the copies without a target) and
`llvm-dwarfdump --name`.  A tool that is not installed is left out.  llvm-dwarfdump only finds the
function's entries, not its copies, but it reads all of .debug_info, which takes most of the time.
The ratios are to inlinecall's median.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

import kinst

INLINECALL = Path(sys.executable).with_name("inlinecall")
FUNCTIONS = ("skb_put", "fdget", "list_add", "get_current")
SECONDS = 300


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool that finds the copies of an inline function.

    Attributes:
        name: name of the tool.
        command: returns its command line for a file and a function.
        places: returns the number of copies that its output lists.
    """

    name: str
    command: Callable[[str, str], Sequence[str]]
    places: Callable[[str], int]


def _copies(text: str) -> int:
    return sum(len(function["copies"]) for function in json.loads(text))


PEERS = (
    Peer("inlinecall", lambda f, file: [str(INLINECALL), "--json", f, file], _copies),
    Peer(
        "perf probe",
        lambda f, file: ["perf", "probe", "-q", "-k", file, "-D", f],
        lambda text: text.count("\n"),
    ),
    Peer(
        "gdb",
        lambda f, file: ["gdb", "-nx", "-batch", "-ex", f"break {f}", "-ex", "info break", file],
        # A line for each copy, "1.1 y 0x... in f at file:line"; for a single copy a line without
        # the number 1.1.
        lambda text: sum(" 0xffff" in line and " in " in line for line in text.splitlines()),
    ),
    Peer(
        "llvm-dwarfdump",
        lambda f, file: ["llvm-dwarfdump", f"--name={f}", file],
        lambda text: text.count("DW_TAG_"),
    ),
)


def timed(command: Sequence[str], environment: dict[str, str]) -> tuple[float, str]:
    """Return the seconds that a command takes, and its output. Its exit status is ignored: perf
    reports an error if it finds nothing."""
    start = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env=environment, errors="replace"
    )
    seconds = time.perf_counter() - start
    if command[0] == str(INLINECALL) and done.returncode:
        sys.exit(done.stderr.strip())
    return seconds, done.stdout


def first_index(file: str, folder: str) -> float:
    """Return the seconds that a new process takes to make the index, with numba's compiled code in
    the cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": folder}
    command = [str(INLINECALL), FUNCTIONS[0], file]
    timed(command, environment)
    for index in Path(folder).glob("kinst/*.index"):
        index.unlink()
    return timed(command, environment)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("functions", nargs="*", default=FUNCTIONS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--file", help="the debug file (the kernel that make setup fetched)")
    asked = parser.parse_args()
    file = asked.file or str(kinst.kernel_files().debug)
    console = Console()
    table = Table("function", "tool", "places", "median s", "min s", "times inlinecall")
    with tempfile.TemporaryDirectory() as folder:
        making = first_index(file, folder)
        console.print(f"{file}: first index {making:.2f} s")
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "DEBUGINFOD_URLS": ""}
        for function in asked.functions:
            unit = 0.0
            for peer in PEERS:
                if not shutil.which(peer.command(function, file)[0]):
                    continue
                runs = [timed(peer.command(function, file), environment) for _ in range(asked.runs)]
                seconds = [run[0] for run in runs]
                median = statistics.median(seconds)
                unit = unit or median
                table.add_row(
                    function, peer.name, str(peer.places(runs[0][1])), f"{median:.3f}",
                    f"{min(seconds):.3f}", f"{median / unit:.1f}",
                )  # fmt: skip
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
