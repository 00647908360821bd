"""--live prints what --vm prints.

The programs are a hundred of the conformance suite, whose output was worked out from the Guide's
text, and examples, whose counts are those of deeds.c.  docs/live.md says how far this has been
run.  One program differs from the Guide, by --vm too, because the library runs it: $0 without a
script.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kinst
from kinst.kernels.fetch import Prepared
from tests.vm.live.live_guest_run import run_in_guest
from tests.vm.live.live_programs import cases, is_printed, programs, said, scripts

pytestmark = [pytest.mark.vm, pytest.mark.slow]
Said = dict[str, tuple[str, str]]
# In a line about the number of probes.
_MATCHED = re.compile(r"(dtrace|kinst): (script|description) .* matched \d+ probe")


@pytest.fixture(scope="module")
def by_vm(reads: Path, guest_program: Callable[[str], Path]) -> Said:
    with kinst.boot(copies=[reads, guest_program("deeds")]) as machine:
        return {one.name: said(machine, one) for one in programs()}


@pytest.fixture(scope="module")
def by_live(
    prepared: Prepared,
    reads: Path,
    guest_program: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Said:
    folder = tmp_path_factory.mktemp("live-programs")
    line = (
        f"{sys.executable} -m tests.vm.live.live_programs {prepared.debug} {reads.parent}"
        f" {guest_program('deeds').parent} >{folder}/out"
    )
    print(run_in_guest(prepared.release, folder, line))
    lines = map(json.loads, (folder / "out").read_text().splitlines())
    return {name: (out, told) for name, out, told in lines}


def test_the_suites_programs(by_vm: Said, by_live: Said) -> None:
    wanted = cases()
    differ = [
        f"{name}\n--vm: {by_vm[name]}\n--live: {by_live.get(name)}"
        for name in wanted
        if by_live.get(name) != by_vm[name]
    ]
    assert not differ, "\n".join(differ)
    right = [name for name, case in wanted.items() if is_printed(case, by_live[name][0])]
    wrong = sorted(set(wanted) - set(right))
    assert len(right) >= 100, wrong
    print(f"{len(right)} of {len(wanted)} as the Guide has it; not: {wrong}")


def test_examples(by_vm: Said, by_live: Said) -> None:
    found = scripts()
    differ = [
        f"{name}: {expression}\n--{way}: {out}\n{told}"
        for name, script in found.items()
        for way, (out, told) in (("vm", by_vm[name]), ("live", by_live[name]))
        for expression in (*script.found, *script.not_found, "")
        if not _holds(expression, out, told, expression in script.found)
    ]
    assert not differ, "\n".join(differ)
    assert len(found) >= 30


def _holds(expression: str, out: str, told: str, wanted: bool) -> bool:
    """Return whether an expression matches or not, as wanted; an empty one: there was no
    complaint."""
    if not expression:
        return all(_MATCHED.match(line) for line in told.splitlines())
    return bool(re.search(expression, out, re.M)) == wanted
