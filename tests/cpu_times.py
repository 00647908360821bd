"""CPU seconds of each test, including its child processes, by folder and by file.

    KINST_TEST_TIMES=times.jsonl make test
    python -m tests.cpu_times times.jsonl [FILES]

FILES is how many of the most expensive files to list.

A child process counts for the test that waits for it: processes that a module's fixture starts
count for the last test of the module.  Sums by file are therefore right, times of single tests may
not be.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest


def _used() -> float:
    """Return the CPU seconds of this process and of the children that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


class CpuTimes:
    """Append a line of JSON for each test: [node id, CPU seconds]."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = _used()
        try:
            return (yield)
        finally:
            with self._path.open("a") as file:
                file.write(json.dumps([item.nodeid, round(_used() - before, 3)]) + "\n")


def read(lines: Iterable[str]) -> dict[str, list[float]]:
    """Return the CPU seconds of the tests of each file."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        node, seconds = json.loads(line)
        found[node.split("::")[0]].append(seconds)
    return found


def table(files: dict[str, list[float]], most: int) -> str:
    """Return folders with their sums, then the most expensive files."""
    folders: dict[str, list[float]] = defaultdict(list)
    for name, seconds in files.items():
        parts = name.split("/")
        folders["/".join(parts[:3] if parts[1] == "vm" else parts[:2]) if parts[2:] else name] += (
            seconds
        )
    rows = []
    for kind in (folders, dict(sorted(files.items(), key=lambda f: -sum(f[1]))[:most])):
        rows += [
            f"{sum(seconds):8.1f} s {len(seconds):6} tests  {name}"
            for name, seconds in sorted(kind.items(), key=lambda f: -sum(f[1]))
        ] + [""]
    total = sum(map(sum, files.values()))
    return "\n".join([*rows, f"{total:8.1f} s {sum(map(len, files.values())):6} tests in all"])


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1]).read_text().splitlines()), int((sys.argv[2:] or ["40"])[0])))
