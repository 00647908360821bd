"""kinst annotate on a real kernel.

Its answers for each branch agree with the processor's own flags, and its counts are those of a
plain trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinst
from kinst.core.code import OUTSIDE, FunctionCode
from kinst.core.words import MASK
from kinst.events import Aggregation
from kinst.views.counting import clause, counted, described, plan_counting
from kinst.views.flow import ENTRY, INSIDE, FlowCounts
from tests.vm.command import ran

pytestmark = pytest.mark.vm

FEW = ["vfs_read", "ksys_read", "path_openat"]
WORK = "ls -lR /proc/1 >/dev/null; head -c 100 /proc/meminfo | wc; cat /etc/passwd >/dev/null"
# Ten functions of different kinds: with loops, computed jumps, faults, tables, assembly, and ones
# in which threads sleep.
TEN = [*FEW, "vsnprintf", "copy_page_to_iter", "pipe_read", "d_path", "handle_mm_fault", "do_fcntl",
       "__schedule"]  # fmt: skip


def every_branch(codes: list[FunctionCode]) -> str:
    """Return clauses that check at every conditional branch whether it is taken or not, and at
    every computed jump its target.

    They also count all instructions by another key.
    """
    rows = []
    for code in codes:
        for block in code.blocks:
            for edge in block.edges:
                if edge.condition and not block.last.refused and not block.destination:
                    action = f"@every[probefunc, probename, {edge.kind == 'taken':d}] = count();"
                    rows.append(clause(described(block.last), edge.condition, action))
            if block.destination and not block.last.refused:
                action = f"@jumps[probefunc, probename, (uint64_t)({block.destination})] = count();"
                rows.append(clause(described(block.last), "", action))
        for part in code.parts:
            where = f"kinst:{part.module}:{part.name}:"
            rows.append(clause(where, "", "@plain[(uint64_t)regs[R_PC]] = count();"))
    return "\n".join(rows)


def conserved(code: FunctionCode, flow: FlowCounts) -> None:
    """Check that in = out = block, if everything around a block is known."""
    into: dict[int, list[int | None]] = {k: [] for k in range(len(code.blocks))}
    into[code.root].append(flow.edges.get(ENTRY))
    for number, block in enumerate(code.blocks):
        out = [flow.edges.get((number, k)) for k in range(len(block.edges))]
        for edge, count in zip(block.edges, out, strict=True):
            if edge.to != OUTSIDE:
                into[edge.to].append(count)
        inside = flow.edges.get((number, INSIDE), 0)
        if None not in out and flow.exits[number] is not None:
            assert sum(filter(None, out)) + inside == flow.exits[number], (code.function, number)
    for number, counts in into.items():
        if None not in counts and flow.entries[number] is not None:
            assert sum(filter(None, counts)) == flow.entries[number], (code.function, number)


def check(machine: kinst.Machine, names: list[str], work: str) -> tuple[int, int, int]:
    """Compare everything; return the number of edges, of those that are known, and of those asked
    for."""
    codes = machine.code(*names)
    plan = plan_counting(codes)
    with machine.trace(plan.program + every_branch(codes), command=work) as trace:
        left_out = trace.left_out
        lost = [event for event in trace if isinstance(event, kinst.events.Lost)]
        found = trace.aggregations()
    assert lost == []
    tables = [Aggregation(t.name, t.function, t.key_types, t) for t in found.values()]
    flows = counted(plan, tables, left_out)
    plain = {int(key[0]) & MASK: value for key, value in found["plain"].items()}
    every = {
        (str(f), int(str(name)), bool(taken)): n for (f, name, taken), n in found["every"].items()
    }
    jumps = found.get("jumps", {})
    edges = known = 0
    for code, flow in zip(codes, flows, strict=True):
        assert flow.mismatches == (), (code.function.name, flow.mismatches)
        conserved(code, flow)
        assert {at: n for at, n in flow.instructions.items() if n} == {
            one.address: plain[one.address] for one in code.instructions if one.address in plain
        }
        for number, block in enumerate(code.blocks):
            last = block.last
            went = {
                int(key[2]) & MASK: n for key, n in jumps.items()
                if key[:2] == (last.function.name, str(last.offset))
            }  # fmt: skip
            for k, edge in enumerate(block.edges):
                edges += 1
                count = flow.edges.get((number, k))
                if count is None:
                    continue
                known += 1
                if block.destination and edge.to != OUTSIDE and not last.refused:
                    assert count == went.get(code.blocks[edge.to].address, 0)
                elif edge.condition and not last.refused:
                    taken = edge.kind == "taken"
                    asked = every.get((last.function.name, last.offset, taken), 0)
                    assert count == asked, (code.function.name, last.offset, taken)
        assert flow.entered is not None and flow.entered > 0, code.function.name
    return edges, known, sum(map(len, plan.asked))


@pytest.fixture(scope="module")
def machine() -> Iterator[kinst.Machine]:
    with kinst.boot() as opened:
        yield opened


def test_edges_of_three_functions(machine: kinst.Machine) -> None:
    edges, known, asked = check(machine, FEW, WORK)
    assert known == edges > 400 and asked < 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_edges_of_ten_functions(machine: kinst.Machine, seed: int) -> None:
    edges, known, _ = check(machine, TEN, f"{WORK}; {'ls /bin | wc; ' * seed}true")
    assert known >= 0.98 * edges and edges > 900


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["arm64", "riscv64"])
def test_edges_of_other_isas(isa: str) -> None:
    with kinst.boot(isa) as machine:
        edges, known, _ = check(machine, ["vfs_read", "ksys_read", "d_path", "pipe_read"], WORK)
        assert known >= 0.95 * edges and edges > 150


def test_the_command(tmp_path: Path) -> None:
    """Text, page and graph are of one trace; a saved result prints the same again."""
    page, text = tmp_path / "a.html", tmp_path / "a.txt"
    command = "read -r name </proc/1/comm; echo $name; exit 3"
    arguments = [
        "annotate",
        "vfs_read",
        "--html",
        str(page),
        "-o",
        str(text),
        "--if",
        "pid == $target",
    ]
    done = ran(*arguments, "-c", command, status=3)
    assert done.stdout.endswith("init\n"), done
    assert re.match(r"vfs_read  fs/read_write\.c:\d+  entered \w+", text.read_text())
    assert 1000 < page.stat().st_size < 2_000_000

    shown = ran("annotate", "-d", "vfs_read")
    program, result = tmp_path / "p.d", tmp_path / "result.json"
    program.write_text(shown.stdout)
    arguments = ["--json", "-q", "-o", str(result), "-s", str(program), "-c", "cat /proc/1/comm"]
    ran(*arguments)
    rows = [json.loads(line) for line in result.read_text().splitlines()]
    table = next(row for row in rows if row.get("name") == "count")
    entered = next(row["value"] for row in table["rows"] if row["key"][2] == "0")
    arguments = ["annotate", "vfs_read", str(result), "--dot"]
    done = ran(*arguments)
    assert f"vfs_read: entered {entered} times" in done.stdout
    # Without a name the functions are those of the result.
    assert ran("annotate", result, "--dot").stdout == done.stdout
