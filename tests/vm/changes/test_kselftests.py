"""The kernel's own self tests have the same results with whole subsystems planted as untraced.

All sites but the call sites of the kernel's own tracer are planted.  The tests are the scripts for
ftrace and kprobes, and programs that call the kernel.

    KINST_SELFTESTS=kprobe,programs    which (kprobe, dynevent, ftrace, trigger, ..., programs)
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.changes.kernel_selftests import BUILT, selftests_of
from tests.vm.command import kinst, warnings

pytestmark = [pytest.mark.vm, pytest.mark.slow]
WHICH = os.environ.get("KINST_SELFTESTS", "kprobe,dynevent,ftrace,trigger,event,programs")
# Files, pipes, memory, signals, futexes, threads and their ends.
PLANTED = ("vfs_*", "pipe_*", "do_*", "futex_*", "__x64_sys_*", "filemap_*", "shmem_*", "copy_*")
LIMIT = 600  # seconds of one of the programs
SECONDS = 5400.0
RESULT = re.compile(r"^\[(\d+)\] (.*?)\s+\[(\w+)\]$", re.M)
ENDED = re.compile(r"^selftest (\S+) (\d+)$", re.M)
TROUBLE = re.compile(r"BUG|Oops|WARNING|general protection|soft lockup|Call Trace|ftrace faulted")


def command(which: str, folder: Path) -> str:
    if which != "programs":
        return f"cd {folder}/ftrace && sh ./ftracetest -l /tmp/selftest-logs test.d/{which}"
    names = " ".join(f"{folder}/{name}" for name in BUILT)
    return (
        f"for d in {names}; do cd $d; for t in *; do [ -f $t -a -x $t ] || continue;"
        " case $t in *.sh|*.py|*.c|*.o) continue;; esac;"
        f" timeout {LIMIT} ./$t >/tmp/said 2>&1 </dev/null; echo selftest ${{d##*/}}/$t $?;"
        " done; done"
    )


def results(which: str, folder: Path, *probes: str) -> tuple[dict[str, str], str]:
    """Return the results by test, and the messages of kinst and of the kernel's log."""
    words = ["--root", "/", "-qv", "-x", "plant=no-callsite"]
    words += [word for one in ("BEGIN { }", *probes) for word in ("-n", one)]
    script = f"dmesg -c >/dev/null; {command(which, folder)}; echo log; dmesg -r"
    done = kinst(*words, "-c", f"sh -c '{script}'", append="", seconds=SECONDS).good()
    said, _, log = done.guest.replace("\r", "").partition("\nlog\n")
    found = {name: result for _, name, result in RESULT.findall(said)}
    found |= dict(ENDED.findall(said))
    assert found, done
    assert not [line for line in warnings(log) if TROUBLE.search(line)], log
    return found, done.err


@pytest.mark.parametrize("which", WHICH.split(","))
def test_the_same_results(which: str, prepared: Prepared) -> None:
    folder = selftests_of("amd64", prepared.modules.name)
    plain, _ = results(which, folder)
    wanted = ", ".join(f"kinst::{name}:" for name in PLANTED)
    traced, said = results(which, folder, f"{wanted} {{ @ = count(); }}")
    # The tests leave tracepoints and static keys on.
    assert re.search("kernel text is as before|kinst's patches are all undone", said), said
    print(f"{which}: {len(plain)} tests: {sorted(plain.items())}")
    names = plain.keys() | traced.keys()
    both = {name: (plain.get(name), traced.get(name)) for name in names}
    assert not {name: pair for name, pair in both.items() if pair[0] != pair[1]}
