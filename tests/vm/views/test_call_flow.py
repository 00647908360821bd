"""kinst flow on a real kernel, against function_graph: the same functions in the same order.

The kernel's own tracer is the authority.  The two differ for four reasons.  The tracer sees only
functions in available_filter_functions.  kinst does not see functions that it reports as left out.
A call can take several paths; the tracer's runs show many of them.  An allocation now and then
refills the list of free objects (REFILLS).  So each function of kinst's
call must have called what the tracer shows of one of the function's calls, in the same order.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import takewhile

import pytest

import kinst
from tests.vm.command import ran

pytestmark = pytest.mark.vm

Row = tuple[int, str]  # depth and function
Called = tuple[str, tuple[str, ...]]  # function, and those that it called, in order
TRACER = """
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
cd /sys/kernel/tracing
echo nop > current_tracer
echo 32768 > buffer_size_kb
echo {function} > set_graph_function
for n in 1 2 3; do {command}; done
echo 0 > tracing_on
echo function_graph > current_tracer
echo 0 > options/funcgraph-irqs
echo 1 > tracing_on
for n in 1 2 3 4; do {command}; done
echo 0 > tracing_on
"""
# One of some thirty allocations of an object takes this path (mm/slub.c): which one depends on all
# allocations before.
REFILLS = {"___slab_alloc"}
_GRAPH = re.compile(r"^ *\d+\) .*?\|  ( *)(?:([\w.]+)\(\)(;| \{)|\}.*)")
_FLOW = re.compile(r"^ *\d+ ( *)-> ([\w.@]+)(\(| \[inlined\])")


def graph_trees(text: str) -> Iterator[list[Row]]:
    """Return the whole calls in the output of function_graph, by CPU: each from its depth 0 on."""
    rows: dict[str, list[Row]] = {}
    for line in text.splitlines():
        found = _GRAPH.match(line)
        if found is None:
            continue
        cpu, depth = line.split(")")[0].strip(), len(found[1]) // 2
        own = rows.setdefault(cpu, [])
        if found[2]:
            if depth == 0:
                own.clear()
            own.append((depth, found[2]))
        if depth == 0 and own and not line.rstrip().endswith("{"):
            yield list(own)
            own.clear()


def flow_tree(text: str) -> list[Row]:
    """Return the call that kinst shows, without inlined functions."""
    rows, inlined = [], list[int]()
    for line in text.splitlines():
        found = _FLOW.match(line)
        if found is None:
            continue
        depth = len(found[1]) // 2
        while inlined and inlined[-1] >= depth:
            inlined.pop()
        if found[3] != "(":
            inlined.append(depth)
        else:
            rows.append((depth - len(inlined), found[2].partition("@")[0]))
    return rows


def without(rows: Iterable[Row], names: set[str]) -> list[Row]:
    """Return a tree without these functions; their callees are in their place."""
    found, gone = list[Row](), list[int]()
    for depth, name in rows:
        while gone and gone[-1] >= depth:
            gone.pop()
        if name in names:
            gone.append(depth)
        else:
            found.append((depth - len(gone), name))
    return found


def without_refills(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the functions of a tree that are not in a refill."""
    refill = sys.maxsize
    for depth, name in rows:
        if depth <= refill:
            refill = depth if name in REFILLS else sys.maxsize
        if refill == sys.maxsize:
            yield depth, name


def calls_of(tree: Iterable[Row]) -> Iterator[Called]:
    """Yield each function of a tree with the functions that it called, without refills."""
    rows = list(without_refills(tree))
    for number, (depth, name) in enumerate(rows):
        below = takewhile(lambda row, depth=depth: row[0] > depth, rows[number + 1 :])
        yield name, tuple(called for level, called in below if level == depth + 1)


@pytest.mark.full
@pytest.mark.parametrize(("function", "command"), [
    ("do_sys_openat2", "cat /etc/passwd >/dev/null"),
    ("vfs_read", "wc -l /etc/passwd"),
    ("handle_mm_fault", "cat /etc/passwd >/dev/null"),
])  # fmt: skip
def test_the_same_functions_in_the_same_order(function: str, command: str) -> None:
    # One CPU: the kernel writes breakpoints over 50,000 functions and removes them again, and QEMU
    # before 8.1 may keep a translation of one (kinst/machines/vm/retranslation.py). A CPU executes
    # it for ever while another waits: of 20 guests with two CPUs on a busy host, three hung.
    with kinst.boot(cpus=1) as machine:
        tracer = TRACER.format(function=function, command=command)
        said = machine.execute(tracer).output
        # The serial port passes on some 50 kB a second, and the trace has some MB.
        packed = machine.execute("gzip -c /sys/kernel/tracing/trace").output
        traced = gzip.decompress(packed).decode()
        trees = list(graph_trees(traced))
        assert trees, (said, traced[-2000:])
        done = ran("flow", function, "-c", command)
        shown = flow_tree(done.stdout)
        seen = {name for tree in trees for _, name in tree}
        only_kinst = sorted({name for _, name in shown} - seen)
        pattern = f"^({'|'.join(only_kinst)})( |$)"
        listed = machine.execute(
            f"grep -E '{pattern}' /sys/kernel/tracing/available_filter_functions"
        ).output.decode()
        can_be_traced = [line.split()[0] for line in listed.splitlines()]
    hidden = set(only_kinst) - set(can_be_traced)
    left_out = set(re.findall(r"calls? of ([\w.]+) left out", done.stderr))
    expected = {one for tree in trees for one in calls_of(without(tree, left_out))}
    found = without(shown, hidden)
    unknown = [one for one in calls_of(found) if one not in expected]
    known = {name: [one for one in expected if one[0] == name] for name, _ in unknown}
    assert not unknown, (unknown, known, hidden, left_out, found)
    assert found[0] == (0, function) and len(shown) > 10


@pytest.mark.full
def test_a_call_with_arguments_results_and_times() -> None:
    done = ran("flow", "ksys_read", "-c", "dd if=/dev/zero of=/dev/null bs=100 count=1")
    rows = done.stdout.splitlines()
    assert re.fullmatch(
        r"ksys_read in \w+, pid \d+, CPU \d+: (the only call|the first of \d+ calls)", rows[0]
    )
    assert rows[1] == "CPU FUNCTION"
    assert re.fullmatch(r" +\d+ -> ksys_read\(\d+, 0x[0-9a-f]+, \d+\)", rows[2])
    assert re.fullmatch(r" +\d+ <- ksys_read = -?\d+ +[\d.]+ (ns|µs|ms)", rows[-1])
    assert any(" -> vfs_read(0x" in row for row in rows)
    assert "left out" in done.stderr or "calls of" in done.stderr


@pytest.mark.full
def test_a_call_that_faults_in_each_page_of_its_buffer() -> None:
    """dd reads zeros into a new buffer of 1 MB: each of its pages is a page fault in the call."""
    condition = 'execname == "dd" && arg2 == 1 << 20'
    command = "dd if=/dev/zero of=/dev/null bs=1M count=1"
    done = ran("flow", "ksys_read", "--if", condition, "-c", command)
    faults = sum(name == "handle_mm_fault" for _, name in flow_tree(done.stdout))
    assert 255 <= faults <= 257, done.stderr
    assert re.search(r"<- ksys_read = 1048576 ", done.stdout.splitlines()[-1])
