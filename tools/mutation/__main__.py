"""Draw mutants of a folder of kinst at random, and run the folder's tests on each.

    python -m tools.mutation FOLDER [--draw N] [--seed N] [--tests FOLDER ...] [--results DIR]
    python -m tools.mutation --table [--results DIR]

First the tests run once, with coverage, which tells those that reach a line; of a mutant those
are run, the quickest first, until one fails.  A mutant lives in the memory of a forked process
alone, in the place of the module when it is imported: no file of the source is written, and the
cache folder is one of its own (kernels are shared).  Results are appended to DIR/FOLDER.jsonl; what
is there already is not run again.  Survivors that docs or eyes found to be the same program as the
original stand in equivalent.txt beside this file, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from tools.mutation.mutants import Mutant, mutants
from tools.mutation.runs import Recorded, record, run

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation")
    parser.add_argument("folder", nargs="?", help="of kinst: patch")
    parser.add_argument("--draw", type=int, default=50, metavar="N", help="mutants (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="*", default=[], help="folders of tests (the same name)")
    parser.add_argument("--results", type=Path, default=Path("/tmp/kinst-mutation"))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a mutant (300)")
    parser.add_argument("--again", action="store_true", help="run only what survived")
    parser.add_argument("--table", action="store_true", help="print what all runs found")
    asked = parser.parse_args()
    asked.results.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    if asked.table or not asked.folder:
        print("\n".join(table(asked.results)))
        return
    folders = asked.tests or [f"tests/{asked.folder}"]
    known = _coverage(asked.folder, folders, asked.results)
    results = asked.results / f"{asked.folder}.jsonl"
    done = {(row["path"], row["number"]): row for row in _rows(results)}
    survived = [row for row in done.values() if row["outcome"] == "survived"]
    for mutant in drawn(asked.folder, asked.draw, asked.seed):
        key = (mutant.path, mutant.number)
        if asked.again != (key in {(row["path"], row["number"]) for row in survived}):
            continue
        if key in done and not asked.again:
            continue
        began = time.monotonic()
        tests = known.tests_of(mutant)
        outcome, by = "survived", ""
        if tests:
            outcome, by = run(ROOT, mutant, tests, asked.results, asked.limit)
        row: dict[str, Any] = {
            "path": mutant.path, "number": mutant.number, "text": str(mutant), "outcome": outcome,
            "by": by, "tests": len(tests), "seconds": round(time.monotonic() - began, 1),
            "seed": asked.seed,
        }  # fmt: skip
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{outcome:9} {row['seconds']:6} s {len(tests):4} tests  {mutant}", flush=True)


def drawn(folder: str, count: int, seed: int) -> list[Mutant]:
    """As many of the folder's mutants at random, each equally likely."""
    every = [
        mutant
        for path in sorted((ROOT / "kinst" / folder).rglob("*.py"))
        for mutant in mutants(path.read_text(), str(path.relative_to(ROOT)))
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


def table(results: Path) -> list[str]:
    """A row for each folder: the last outcome of each mutant."""
    equivalent = {
        line.partition("  #")[0].strip()
        for line in EQUIVALENT.read_text().splitlines()
        if line and not line.startswith("#")
    }
    lines = [
        "| folder | drawn | killed | survived | of these equivalent | killed of the others |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(results.glob("*.jsonl")):
        last = {(row["path"], row["number"]): row for row in _rows(path)}
        survived = [row for row in last.values() if row["outcome"] == "survived"]
        same = sum(_unplaced(row["text"]) in equivalent for row in survived)
        killed = len(last) - len(survived)
        share = f"{killed / max(1, len(last) - same):.1%}"
        cells = (path.stem, len(last), killed, len(survived), same, share)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _unplaced(text: str) -> str:
    """A mutant's text without its line, which changes with every change above it."""
    path, _, rest = text.partition(":")
    return f"{path} {rest.partition(' in ')[2]}"


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _coverage(folder: str, tests: list[str], results: Path) -> Recorded:
    """Which test reaches which line; kept until a source or a test changes."""
    kept = results / f"{folder}-{zlib.crc32(' '.join(tests).encode()):x}.coverage.json"
    files = [*(ROOT / "kinst").rglob("*.py"), *(p for t in tests for p in (ROOT / t).rglob("*.py"))]
    if not kept.exists() or kept.stat().st_mtime < max(path.stat().st_mtime for path in files):
        print(f"the tests of {', '.join(tests)} are run once, with coverage", file=sys.stderr)
        record(ROOT, folder, tests, kept)
    return Recorded.read(kept)


if __name__ == "__main__":
    main()
