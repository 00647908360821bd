"""Every instruction of the exclusive sequences that a workload executes on arm64, counted beside
the kernel's own kprobe events.

kinst's machine has a processor without Armv8.1's atomics, so that these sequences run.  Linux sets
no kprobe inside a sequence: the kprobe is on the instruction before, which only falls through to
the load-exclusive.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vm.command import Row, counts, guest_script, warnings
from tests.vm.isa_guest import Guest
from tests.vm.isas.test_kprobes import decoded, leaves, targets
from tests.vm.kprobe_events import script, seen

pytestmark = [pytest.mark.vm, pytest.mark.parametrize("guest", ["arm64"], indirect=True)]

ROUNDS = 300
# Functions that opening, duplicating and closing files executes.
PATH = (
    "fput", "__fput", "fget", "__fget_light", "dput", "alloc_fd", "close_fd", "fd_install",
    "__alloc_file", "do_dentry_open", "inode_permission", "generic_permission", "path_init",
    "path_openat", "putname", "d_alloc_parallel", "d_lookup",
    "kmem_cache_alloc", "kmem_cache_free", "kmem_cache_alloc_lru", "down_write", "up_write",
    "mutex_lock", "mutex_unlock", "down_read", "up_read", "security_file_alloc", "filp_close",
    "_raw_spin_lock", "mntget", "mntput_no_expire", "mnt_want_write", "legitimize_mnt",
)  # fmt: skip
LOAD, STORE = re.compile(r"lda?x(r[bh]?|p)"), re.compile(r"stl?x(r[bh]?|p)")
BRANCH = re.compile(r"cbn?z|tbn?z|b\..*")
# The shell itself opens, duplicates and closes files: one process, which kprobe events tell by
# pid.
WORK = f"""
i=0; while [ $i -lt {ROUNDS} ]; do i=$((i + 1)); : < /dev/null 3>&1; [ -e /bin/busybox ]; done
"""


@dataclass(frozen=True)
class Run:
    """An exclusive sequence.

    Attributes:
        before: the instruction that leads into the load-exclusive.
        straight: from the load-exclusive to the last instruction that every pass executes.
        end: the first instruction after the loop, or None if a pass can leave.
    """

    before: Row
    straight: tuple[Row, ...]
    all: tuple[Row, ...]
    end: Row | None

    @property
    def form(self) -> str:
        return " ".join(decoded("arm64", row)[0] for row in self.all)


def runs_of(rows: list[Row]) -> list[Run]:
    """Return the sequences of a function that one instruction leads to and a cbnz ends."""
    goals = targets("arm64", rows)
    names = [decoded("arm64", row)[0] for row in rows]
    found = []
    for at, name in enumerate(names):
        if not LOAD.fullmatch(name) or at == 0 or leaves("arm64", rows[at - 1]):
            continue
        inside = list(itertools.takewhile(lambda n: not STORE.fullmatch(names[n]),
                                          range(at, min(at + 10, len(rows) - 2))))  # fmt: skip
        last = inside[-1] + 1
        if not STORE.fullmatch(names[last]) or names[last + 1] != "cbnz":
            continue
        back = int(decoded("arm64", rows[last + 1])[1].rpartition("#")[2], 0)
        if back != rows[at].offset:
            continue
        exits = [n for n in inside if BRANCH.fullmatch(names[n])]
        straight = rows[at : exits[0] + 1] if exits else rows[at : last + 2]
        after = rows[last + 2]
        end = None if exits or after.offset in goals else after
        found.append(Run(rows[at - 1], tuple(straight), tuple(rows[at : last + 1]), end))
    return found


@pytest.mark.parametrize("way", ["jump", pytest.param("trap", marks=pytest.mark.slow)])
def test_every_instruction_of_sequences(guest: Guest, way: str, tmp_path: Path) -> None:
    """All instructions of the functions' sequences are planted.

    Only the instruction before each sequence is left to the kprobe.  The guest has one CPU: with
    two, QEMU's TCG may keep a translation of code over which the kernel sets a kprobe, and the
    guest hangs, with or without kinst (bench/guest.py, GuestHangsError).
    """
    options = ("-x", f"plant={way}")
    functions = guest.rows(guest.functions(PATH), *options)
    runs = [run for each in functions.values() for run in runs_of(each)]
    assert {row.way for run in runs for row in run.all} == {way}
    places = {f"k{k}": f"{run.before.function}+{run.before.offset}" for k, run in enumerate(runs)}
    lines = ["dmesg -c >/dev/null", script(places, "work.sh"), "echo ==log", "dmesg -r"]
    planted = [(*run.all, *run.straight, *([run.end] if run.end else [])) for run in runs]
    sites = {row.name for rows in planted for row in rows}
    done = guest.trace(
        "--cpus", "1", "-v", *options,
        "-n", f"{', '.join(sorted(sites))} {{ @[pid, probefunc, probename] = count(); }}",
        "-c", "events.sh",
        copy=[
            guest.program("kprobes", guest.isa), guest_script(tmp_path, "work.sh", WORK),
            guest_script(tmp_path, "events.sh", "\n".join(lines)),
        ],
    )  # fmt: skip
    assert "kernel text is as before" in done.err
    work, _, log = done.guest.partition("==log\n")
    assert not warnings(log), log
    theirs = seen(work)
    found = counts(done.out)
    hot: dict[str, int] = defaultdict(int)
    for k, run in enumerate(runs):
        came = theirs.events.get(f"k{k}", 0)
        if came < ROUNDS // 2:
            continue

        def times(row: Row) -> int:
            return found.get((theirs.pid, row.function, str(row.offset)), 0)

        passes = times(run.straight[0])
        assert came <= passes <= came + came // 2, run  # a pass more for each store that failed
        assert {times(row) for row in run.straight} == {passes}, run
        if run.end is not None:
            assert times(run.end) == came, run
        hot[run.form] += 1
    print("\n" + "\n".join(f"{count:3} {form}" for form, count in hot.items()))
    assert sum(hot.values()) >= 8 and len(hot) >= 4, (hot, theirs)
