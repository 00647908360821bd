"""Draw mutants (small changes) of the code in a folder of kinst at random, and run the folder's
tests on each.

    python -m tools.mutation FOLDER [--draw N] [--seed N] [--tests FOLDER ...] [--results DIR]
    python -m tools.mutation --table [--results DIR]

First the tests run once with coverage, which shows the tests that reach each line. For a mutant,
the tests that reach its line run, the quickest first, until one fails.

A mutant exists only in the memory of a forked process, where it replaces the module at its import.
No source file is written. The cache folder is a copy (kernels are shared), so code that numba
compiles in it is lost: in a new checkout, first run a test that makes an index.

Results are appended to DIR/FOLDER.jsonl; mutants that have a result there are not run again.
equivalent.txt beside this file lists the survivors that a person has found to be the same program
as the original, with the reason. If several mutants of a function have the same text, "[2]" after
the text means the second of them only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from tools.mutation.mutants import Mutant, mutants
from tools.mutation.recorded import Recorded, record
from tools.mutation.runs import (
    OPTIONS,
    Chosen,
    Outcome,
    in_fork,
    load_heavy_modules,
    run_fresh,
    run_warm,
)

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path.home() / ".cache/kinst-mutation"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation")
    parser.add_argument("folder", nargs="?", help="of kinst: patch")
    parser.add_argument("--draw", type=int, default=50, metavar="N", help="mutants (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="*", default=[], help="folders of tests (the same name)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder ({RESULTS})")
    parser.add_argument(
        "--budget", type=float, default=20.0, help="of the processor for a mutant (20 s)"
    )
    parser.add_argument(
        "--again", action="store_true", help="run only what survived, on all tests of the files"
    )
    parser.add_argument(
        "--record", action="store_true", help="forget what tests were seen to reach"
    )
    parser.add_argument("--interpret", action="store_true", help="only what numba compiles: scan/")
    parser.add_argument("--table", action="store_true", help="print what all runs found")
    asked = parser.parse_args()
    asked.results.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    os.environ["KINST_MUTATED"] = "1"  # tests/d runs the command in forks
    if asked.table or not asked.folder:
        print("\n".join(table(asked.results)))
        return
    load_heavy_modules(jit=not asked.interpret)
    Campaign(asked, asked.tests or [f"tests/{asked.folder}"]).run()


class Campaign:
    """The mutants of a folder, and the runs of tests on them."""

    def __init__(self, asked: argparse.Namespace, folders: list[str]) -> None:
        self._asked = asked
        self._folders = folders
        self._results = asked.results / f"{asked.folder}.jsonl"
        self._log = asked.results / f"{asked.folder}.log"
        self._known = _coverage(folders, asked)
        self._killers: dict[str, dict[str, int]] = {}  # function -> test -> killed mutants
        for row in _rows(self._results):
            self._note(row)

    def run(self) -> None:
        mutants, before = [], len(_rows(self._results))  # forks append their results to the file
        for mutant in self._wanted():
            if self._known.tests_of(mutant) or self._known.runs_at_import(mutant):
                mutants.append(mutant)
            else:
                self._report(Chosen(mutant, (), 0.0), Outcome("survived"))
        warm = [m for m in mutants if not self._known.runs_at_import(m)]
        if warm:
            paths = {mutant.path for mutant in warm}
            run_warm(ROOT, self._folders, paths, map(self._choose, warm), self._report, self._log)
        done = {(row["path"], row["number"]) for row in _rows(self._results)[before:]}
        for mutant in mutants:
            if (mutant.path, mutant.number) in done:
                continue
            chosen = self._choose(mutant)
            outcome = Outcome("survived")
            if chosen.tests:
                outcome = run_fresh(ROOT, chosen, self._log)
            if outcome.what == "survived":
                others = self._known.others(test for test, _ in chosen.tests)
                tests = tuple((test, self._known.seconds[test]) for test in others)
                chosen = Chosen(mutant, tests, self._asked.budget)
                outcome = run_fresh(ROOT, chosen, self._log)
            self._report(chosen, outcome)

    def _wanted(self) -> list[Mutant]:
        """Return the drawn mutants to run: those without a result; with --again, those that
        survived and that equivalent.txt does not list."""
        same = _equivalent()
        last = {(row["path"], row["number"]): row for row in _rows(self._results)}
        mutants_to_run = []
        for mutant in drawn(self._asked.folder, self._asked.draw, self._asked.seed):
            row = last.get((mutant.path, mutant.number))
            if _is_compiled(mutant.path) != self._asked.interpret:
                continue
            if not self._asked.again:
                wanted = row is None
            else:
                survived = row is not None and row["outcome"] == "survived"
                wanted = survived and same.isdisjoint(_names(str(mutant), mutant.same))
            if wanted:
                mutants_to_run.append(mutant)
        return mutants_to_run

    def _choose(self, mutant: Mutant) -> Chosen:
        """Return the mutant with the tests to run on it: first those that killed another mutant of
        the same function, then the quickest."""
        tests = self._known.tests_of(mutant)
        if self._asked.again:
            tests += [test for test in self._known.neighbours(tests) if test not in tests]
        killers = self._killers.get(_function(mutant.path, mutant.inside), {})
        first = sorted((t for t in tests if t in killers), key=lambda test: -killers[test])[:5]
        tests = list(dict.fromkeys([*first, *tests]))
        chosen = tuple((test, self._known.seconds[test]) for test in tests)
        return Chosen(mutant, chosen, self._asked.budget)

    def _report(self, chosen: Chosen, outcome: Outcome) -> None:
        mutant = chosen.mutant
        row: dict[str, Any] = {
            "path": mutant.path, "number": mutant.number, "text": str(mutant),
            "inside": mutant.inside, "same": mutant.same, "outcome": outcome.what, "by": outcome.by,
            "tests": len(chosen.tests), "ran": outcome.ran, "seed": self._asked.seed,
            "again": self._asked.again, "time": round(time.time()),
        }  # fmt: skip
        with self._results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._note(row)
        print(
            f"{outcome.what:9} {outcome.ran:4} of {len(chosen.tests):4} tests  {mutant}",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def _note(self, row: dict[str, Any]) -> None:
        if row["outcome"] == "killed":
            tests = self._killers.setdefault(_function(row["path"], row.get("inside", "")), {})
            tests[row["by"]] = tests.get(row["by"], 0) + 1


def _is_compiled(path: str) -> bool:
    """Return whether coverage cannot see the code of a file run: numba compiles the file, or the
    file has numbers for compiled code."""
    return "/dwarf/scan/" in path or path.endswith("/dwarf/numbers.py")


def _function(path: str, inside: str) -> str:
    return f"{path} {inside}"


def drawn(folder: str, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of a folder, drawn at random, each with the same probability."""
    every = [
        mutant
        for path in sorted((ROOT / "kinst" / folder).rglob("*.py"))
        for mutant in mutants(path.read_text(), str(path.relative_to(ROOT)))
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


def table(results: Path) -> list[str]:
    """Return the lines of a table with a row for each folder, from the last outcome of each
    mutant."""
    equivalent = _equivalent()
    lines = [
        "| folder | drawn | killed | survived | of these equivalent | killed of the others |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(results.glob("*.jsonl")):
        last = {(row["path"], row["number"]): row for row in _rows(path)}
        survived = [row for row in last.values() if row["outcome"] == "survived"]
        same = sum(
            not equivalent.isdisjoint(_names(row["text"], row.get("same", 0))) for row in survived
        )
        killed = len(last) - len(survived)
        share = f"{killed / max(1, len(last) - same):.1%}"
        cells = (path.stem, len(last), killed, len(survived), same, share)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _equivalent() -> set[str]:
    """Return the names of the mutants that equivalent.txt lists."""
    return {
        line.partition("  #")[0].strip()
        for line in EQUIVALENT.read_text().splitlines()
        if line and not line.startswith("#")
    }


def _names(text: str, same: int) -> set[str]:
    """Return the names by which equivalent.txt may list a mutant: its text without the line number
    (which changes with every edit above the line), and the same with the mutant's number appended,
    as in "[2]".

    Args:
        text: text of the mutant.
        same: number of the mutant among those of its function with the same text.
    """
    path, _, rest = text.partition(":")
    name = f"{path} {rest.partition(' in ')[2]}"
    return {name, f"{name} [{same}]"}


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _coverage(folders: list[str], asked: argparse.Namespace) -> Recorded:
    """Return the tests that reach each line of kinst. The result is saved for each folder of tests,
    separately with and without numba's compiler."""
    kept = []
    for folder in folders:
        name = folder.replace("/", ".") + (".interpreted" if asked.interpret else "")
        file = asked.results / f"{name}.coverage.json"
        if asked.record or not file.exists():
            print(f"the tests of {folder} are run once, with coverage", file=sys.stderr)
            run = partial(record, ROOT, [*OPTIONS, folder], file)
            status = in_fork(file.with_suffix(".log"), run)
            if status:
                sys.exit(f"status {status}, see {file.with_suffix('.log')}")
        kept.append(file)
    return Recorded.read(kept)


if __name__ == "__main__":
    main()
