"""kinst flow --boot against a boot in which every function of the call has probes.

The authority is kinst's other way to see a call: breakpoints at entries and returns.  The test of
kinst flow compares that way with the kernel's own tracer.
"""

from __future__ import annotations

import re
import subprocess

import pytest

import kinst as library
from kinst.events import Record
from kinst.views.call_tracing import CallTracing, arguments_text, result_text
from kinst.views.call_tree import tree_text
from tests.tiers import FIRST, ISAS
from tests.vm.command import KINST

pytestmark = [pytest.mark.vm, pytest.mark.full]

ROOT = "cgroup_init_early"
INITCALL = "init_pipe_fs"  # runs with interrupts on, in a thread of its own
_CALLED = re.compile(r"-> ([\w.@]+)\(", re.M)


def called_rows(text: str) -> list[str]:
    """Return the rows of a tree without CPUs, times, inlined copies and indentation by them."""
    rows, inlined = [], 0
    for line in text.splitlines():
        found = re.match(r" *\d+ ( *)((?:->|<-) .*?)(?:  +[\d.]+ \S+)?$", line)
        if found is None:
            continue
        if found[2].endswith(" [inlined]"):
            inlined += 1 if found[2].startswith("->") else -1
        else:
            rows.append(" " * (len(found[1]) - 2 * inlined) + found[2])
    return rows


@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=[] if isa == FIRST else pytest.mark.slow) for isa in ISAS]
)
def test_a_call_is_as_breakpoints_show_it(isa: str) -> None:
    """The same calls, with the same arguments and results."""
    words = ["flow", f"--vm={isa}", "--boot", "--append", "nokaslr", ROOT]
    ran = subprocess.run([KINST, *words], capture_output=True, text=True, check=True)
    shown = called_rows(ran.stdout)
    names = sorted(set(_CALLED.findall(ran.stdout)))
    assert len(names) > 15 and shown[0] == f"-> {ROOT}()", ran
    with library.boot(isa, trace_boot=True, append="nokaslr") as machine:
        functions = [one for one in machine.functions(*names) if not one.is_part]
        tracing = CallTracing(
            ("vmlinux", ROOT), machine.graphs(functions), machine.result_register, "",
            machine.interrupt_entry(),
        )  # fmt: skip
        done = machine.run(tracing.program, options={"quiet": True})
        tree = tracing.tree(one for one in done.records if isinstance(one, Record))
        assert tree is not None
        text = tree_text(
            tree.root,
            lambda one: arguments_text(one.arguments, machine.prototype(*one.function)),
            lambda one: result_text(one.result, machine.prototype(*one.function)),
        )
        tables = [one.aggregation for one in done.aggregations.values()]
        others = {one.name for one in tracing.unfollowed(tree, tables)}
    assert shown == called_rows(text)
    left_out = set(re.findall(r"calls? of ([\w.]+) left out", ran.stderr))
    assert others - {""} <= left_out  # "" is a function that is called by its address
    assert f"{len(shown) // 2} calls of {len(names)} functions" in ran.stderr


def test_a_call_that_takes_interrupts() -> None:
    """QEMU's log makes the guest slow, but its timer does not tick more often for that."""
    ran = subprocess.run([KINST, "flow", "--boot", INITCALL], capture_output=True, text=True,
                         check=True, timeout=300)  # fmt: skip
    rows = called_rows(ran.stdout)
    depths = [len(row) - len(row.lstrip()) for row in rows]
    assert rows[0] == f"-> {INITCALL}()" and rows[-1] == f"<- {INITCALL} = 0"
    assert "  -> register_filesystem(0x" in "\n".join(rows)
    open_calls: list[str] = []
    for row, depth in zip(rows, depths, strict=True):
        name = re.split(r"[( ]", row.split()[1])[0]
        if row.lstrip().startswith("->"):
            assert depth == 2 * len(open_calls)
            open_calls.append(name)
        else:
            assert open_calls.pop() == name
    assert not open_calls and len(rows) > 200
