"""Inline functions and fbt in a running kernel.

Expectations for inline functions come from the index of debug information alone (the places of
copies) and from the kernel's own kprobe events (how often their entries run).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kinst.core.paths import cache_folder
from kinst.image.dwarf.index import Index, open_index
from kinst.kernels.fetch import Prepared
from tests.vm.command import ALONE, Result, guest_script, kinst, list_functions, listed

pytestmark = pytest.mark.vm

READS = 1000
# Processes, files, directories, memory, pipes, signals, sleep.
WORK = """
for i in 1 2 3; do
    cat /proc/version /proc/meminfo /proc/self/maps > /tmp/out
    ls -lR /proc/self /sys/kernel 2>/dev/null | head -300 | sort | wc -l > /dev/null
    mkdir /tmp/d; echo hi > /tmp/d/a; mv /tmp/d/a /tmp/d/b; ln /tmp/d/b /tmp/d/c; rm -r /tmp/d
    sleep 100 & kill $!; wait
    ps > /tmp/out; mount > /tmp/out; dd if=/dev/zero of=/tmp/out bs=64k count=20 2>/dev/null
done
sleep 0.1
"""


@pytest.fixture(scope="module")
def index(prepared: Prepared) -> Index:
    return open_index(prepared.debug, cache_folder())


def tables(out: str) -> dict[tuple[str, ...], int]:
    """Return rows of printa() with a format "%s ... %@d": counts by keys."""
    found: dict[tuple[str, ...], int] = {}
    for line in filter(None, out.splitlines()):
        *keys, count = line.split()
        found[tuple(keys)] = int(count)
    return found


def test_functions_with_over_a_hundred_copies_fire(index: Index, reads: Path) -> None:
    names = ("fdget", "get_current", "put_page")
    assert all(len(index.copies(n)) > 100 for n in names)
    for name in names:
        done = kinst(
            "-n", f"kinst::{name}:entry {{ @ = count(); }}", "-c", f"reads {READS}", copy=[reads]
        ).good()
        (matched,) = re.findall(r"matched (\d+) probes", done.err)
        distinct = {c.entry for c in index.copies(name) if any(a < b for a, b in c.ranges)}
        own = {low for f in index.functions(name) for low, _ in f.ranges}
        # Init code and noinstr code are left out, nothing else is.
        assert 100 < int(matched) <= len(distinct | own), (name, matched, len(distinct), len(own))
        assert int(done.out.split()[-1]) > 0


LOOKUP = """
    path_openat link_path_walk walk_component lookup_fast step_into do_sys_openat2 iterate_dir
    getname_flags filldir64 vfs_statx kernfs_fop_readdir kernfs_iop_lookup generic_permission
    inode_permission path_lookupat filename_lookup complete_walk terminate_walk do_filp_open
    vfs_getattr_nosec cp_new_stat do_dentry_open may_open alloc_empty_file __fput
    kernfs_iop_permission
    __d_lookup_rcu __d_lookup dput lockref_get_not_dead try_to_unlazy path_init set_root
"""


def expansions(done: Result, names: Sequence[str]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Return the expansions that -d printed for `-n kinst::NAME:entry` of each name, in order.

    Each is a list of (caller, offset); names that have code of their own are left out.
    """
    blocks = done.out.split("   ID ")[0].split("{\n}\n")
    assert len(blocks) == len(names) + 1
    for name, block in zip(names, blocks, strict=False):
        if "fbt::" not in block:
            yield name, [(f, int(o)) for f, o in re.findall(r"kinst::([\w.@]+):(\d+)", block)]


def test_entries_are_as_many_as_kprobes_at_the_same_instructions_count(
    index: Index, tmp_path: Path
) -> None:
    """Inline functions on the paths of find(1) whose entries are all planted by jumps.

    There a kprobe can be set at the same instruction (see tests/vm/counts/test_kprobes.py).
    """
    callers = set(LOOKUP.split())
    names = sorted(
        name
        for name in index.inline_names()
        if 1 <= len(index.copies(name)) <= 6
        and any(c.caller in callers and any(a < b for a, b in c.ranges) for c in index.copies(name))
    )
    words = [w for n in names for w in ("-n", f"kinst::{n}:entry {{}}")]
    first = kinst("-d", "-l", "-v", "-Z", *ALONE, *words)
    if first.status:
        pytest.fail(first.err)
    ways = {(row.function, row.offset): row.way for row in listed(first.out)}
    chosen = {
        name: sites
        for name, sites in expansions(first, names)
        if sites and all(ways.get(site) == "jump" and site[1] for site in sites)
    }
    assert len(chosen) >= 10, sorted(chosen)
    sites = sorted({site for found in chosen.values() for site in found})
    lines = ["echo 0 > /proc/sys/debug/kprobes-optimization", "cd /sys/kernel/tracing || exit 1"]
    for k, (function, offset) in enumerate(sites):
        lines.append(f"echo 'p:k{k} {function}+{offset}' >> kprobe_events || echo no k{k}")
        lines.append(f"echo 'hist:keys=common_pid' > events/kprobes/k{k}/trigger")
    lines += [
        "echo 1 > events/kprobes/enable", "find /sys -name nothing &", 'echo "pid $!"', "wait",
        "echo 0 > events/kprobes/enable", "cat kprobe_profile",
        "for k in events/kprobes/k*; do echo event ${k##*/}; cat $k/hist; done",
    ]  # fmt: skip
    script = guest_script(tmp_path, "entries.sh", "\n".join(lines))
    text = "\n".join(f'kinst::{name}:entry {{ @["{name}", pid] = count(); }}' for name in chosen)
    program = tmp_path / "entries.d"
    program.write_text(text + '\nEND { printa("%s %d %@d\\n", @); }\n')
    options = ("-x", "plant=no-chain")  # see test_inline.py
    done = kinst(*options, "-q", "-s", str(program), "-c", "entries.sh", copy=[script]).good()
    (pid,) = re.findall(r"^pid (\d+)$", done.guest, re.M)
    # The kernel sets none where its own list forbids it, or after an int3 of another function.
    without = {sites[int(k)] for k in re.findall(r"^no k(\d+)$", done.guest, re.M)}
    chosen = {name: found for name, found in chosen.items() if without.isdisjoint(found)}
    assert len(chosen) >= 10, without
    misses = dict(re.findall(r"^ *(k\d+) +\d+ +(\d+)$", done.guest, re.M))
    assert set(misses.values()) == {"0"} and len(misses) == len(sites) - len(without)
    counted = {}
    events = re.split(r"^event (k\d+)$", done.guest, flags=re.M)[1:]
    for name, hist in zip(events[::2], events[1::2], strict=True):
        per_pid = dict(re.findall(r"common_pid: +(\d+) } hitcount: +(\d+)", hist))
        counted[sites[int(name[1:])]] = int(per_pid.get(pid, 0))
    ours = tables(done.out)
    total = 0
    for name, found in chosen.items():
        theirs = sum(counted[site] for site in found)
        assert ours.get((name, pid), 0) == theirs, (name, found)
        total += theirs > 0
    assert total >= 10, counted


def in_flight(name: str, ours: dict[tuple[str, ...], int]) -> int:
    """Return the entries without a return."""
    return ours.get(("E", name), 0) - ours.get(("R", name), 0)


def test_fbt_on_the_read_path(reads: Path) -> None:
    """read(2) of one byte, N times: entry and return as often; arguments and result are known."""
    program = (
        "fbt::vfs_read:entry /pid == $target/ { @entered[arg2, arg3 != 0] = count(); }"
        "fbt::vfs_read:return /pid == $target/ { @left[arg1] = count(); @at[arg0] = count(); }"
        'END { printa("E %d %d %@d\\n", @entered); printa("L %d %@d\\n", @left);'
        ' printa("A %d %@d\\n", @at); }'
    )
    done = kinst("-q", "-n", program, "-c", f"reads {READS}", copy=[reads]).good()
    found = tables(done.out)
    # read(fd, buffer, 1), and the position is given.  The start of libc reads nothing of one byte.
    entered = sum(n for key, n in found.items() if key[:2] == ("E", "1"))
    assert entered == found["L", "1"] >= READS
    assert sum(n for k, n in found.items() if k[0] == "E") == sum(
        n for k, n in found.items() if k[0] == "L"
    )
    rows = {r.offset: r for r in list_functions("vfs_read")["vfs_read"]}
    assert all(rows[int(k[1])].text.startswith("ret") for k in found if k[0] == "A")


def test_fbt_return_of_a_function_that_ends_in_a_tail_call(reads: Path) -> None:
    """arg1 is unknown there: reading it is an error, and no wrong value is ever counted."""
    rows = list_functions("__x64_sys_read")["__x64_sys_read"]
    assert rows[-1].text.startswith("jmp") and not any(r.text.startswith("ret") for r in rows)
    program = (
        "fbt::__x64_sys_read:entry /pid == $target/ { @e = count(); }"
        "fbt::__x64_sys_read:return /pid == $target/ { @r[arg0] = count(); }"
        "fbt::__x64_sys_read:return /pid == $target/ { @v[arg1] = count(); }"
        "dtrace:::ERROR { @x = count(); }"
        'END { printa("E %@d\\n", @e); printa("R %d %@d\\n", @r); printa("X %@d\\n", @x);'
        ' printa("V %d %@d\\n", @v); }'
    )
    done = kinst("-q", "-n", program, "-c", f"reads {READS}", copy=[reads]).good()
    found = tables(done.out)
    assert found["E",] >= READS
    assert found == {
        ("E",): found["E",], ("R", str(rows[-1].offset)): found["E",], ("X",): found["E",],
    }  # fmt: skip
    assert "illegal operation" in done.err


def conditional_tail_calls(listing: str) -> list[str]:
    """Return the functions whose fbt return probes have a conditional jump as a site."""
    found: list[str] = []
    function = ""
    for line in filter(None, listing.splitlines()):
        if not line.startswith("\t"):
            function = line.split()[-2]
        elif re.search(r"  j(?!mp)[a-z]+ 0x", line) and function not in found:
            found.append(function)
    return found


def test_conditional_tail_calls_count_when_they_are_taken(tmp_path: Path) -> None:
    """Functions that a conditional jump leaves return as often as they are entered."""
    globs = ("__put_user_*", "__get_user_*")  # in assembly: this gcc makes none
    words = [w for g in globs for w in ("-n", f"fbt::{g}:return {{}}")]
    functions = conditional_tail_calls(kinst("-l", "-v", *words).good().out)
    assert len(functions) >= 6
    program = tmp_path / "tails.d"
    entries = ", ".join(f"fbt::{f}:entry" for f in functions)
    returns = ", ".join(f"fbt::{f}:return" for f in functions)
    program.write_text(
        f"{entries} {{ @e[probefunc] = count(); }} {returns} {{ @r[probefunc] = count(); }}"
        'END { printa("E %s %@d\\n", @e); printa("R %s %@d\\n", @r); }'
    )
    script = guest_script(tmp_path, "work.sh", WORK)
    done = kinst("-q", "-Z", "-x", "aggsize=8m", "-s", str(program), "-c", "work.sh",
                 copy=[script]).good()  # fmt: skip
    found = tables(done.out)
    ran = [f for f in functions if ("E", f) in found]
    assert len(ran) >= 2
    assert not {f: in_flight(f, found) for f in ran if abs(in_flight(f, found)) > 2}
