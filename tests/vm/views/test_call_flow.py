"""kinst flow on a real kernel, against function_graph: the same functions in the same order.

The kernel's own tracer is the authority.  Three rules cover what the two cannot have in common:
the tracer sees only functions in available_filter_functions, kinst does not see functions that it
reports as left out, and a call can take several paths, many of which the tracer's runs show:
kinst's call must be one of them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator

import pytest

import kinst
from tests.vm.command import KINST

pytestmark = pytest.mark.vm

Row = tuple[int, str]  # depth and function
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
cat trace
echo nop > current_tracer
"""
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
        traced = machine.execute(tracer).output.decode()
        trees = list(graph_trees(traced))
        assert trees, traced[-2000:]
        ran = subprocess.run(
            [KINST, "flow", function, "-c", command], capture_output=True, text=True, check=True
        )
        shown = flow_tree(ran.stdout)
        seen = {name for tree in trees for _, name in tree}
        only_kinst = sorted({name for _, name in shown} - seen)
        listed = "/sys/kernel/tracing/available_filter_functions"
        can_be_traced = (
            machine.execute(
                f'for f in {" ".join(only_kinst)}; do grep -E "^$f( |$)" {listed}; done'
            )
            .output.decode()
            .split()
        )
    hidden = set(only_kinst) - set(can_be_traced)
    left_out = set(re.findall(r"calls? of ([\w.]+) left out", ran.stderr))
    expected = [without(tree, left_out) for tree in trees]
    assert without(shown, hidden) in expected, (shown, expected[0], hidden, left_out)
    assert len(shown) > 10


@pytest.mark.full
def test_a_call_with_arguments_results_and_times() -> None:
    ran = subprocess.run(
        [KINST, "flow", "ksys_read", "-c", "dd if=/dev/zero of=/dev/null bs=100 count=1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = ran.stdout.splitlines()
    assert re.fullmatch(
        r"ksys_read in \w+, pid \d+, CPU \d+: (the only call|the first of \d+ calls)", rows[0]
    )
    assert rows[1] == "CPU FUNCTION"
    assert re.fullmatch(r" +\d+ -> ksys_read\(\d+, 0x[0-9a-f]+, \d+\)", rows[2])
    assert re.fullmatch(r" +\d+ <- ksys_read = -?\d+ +[\d.]+ (ns|µs|ms)", rows[-1])
    assert any(" -> vfs_read(0x" in row for row in rows)
    assert "left out" in ran.stderr or "calls of" in ran.stderr


@pytest.mark.full
def test_a_call_that_faults_in_each_page_of_its_buffer() -> None:
    """dd reads zeros into a new buffer of 1 MB: each of its pages is a page fault in the call."""
    ran = subprocess.run(
        [KINST, "flow", "ksys_read", "--if", 'execname == "dd" && arg2 == 1 << 20',
         "-c", "dd if=/dev/zero of=/dev/null bs=1M count=1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    faults = sum(name == "handle_mm_fault" for _, name in flow_tree(ran.stdout))
    assert 255 <= faults <= 257, ran.stderr
    assert re.search(r"<- ksys_read = 1048576 ", ran.stdout.splitlines()[-1])
