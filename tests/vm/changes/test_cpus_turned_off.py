"""CPUs that are turned off and on before the trace, while it runs, and while processes are
counted.

Expected numbers come from the programs themselves, which print how many reads they have made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kinst

pytestmark = [pytest.mark.vm, pytest.mark.slow]

SITE = "kinst::read_zero:0, kinst::read_iter_zero:0"
PROGRAM = f"""
    {SITE} /execname == "hops"/ {{ @on[cpu] = count(); }}
    {SITE} /execname == "reads"/ {{ @reads = count(); self->n++; }}
    {SITE} /execname == "reads" && self->n % 1000 == 0/ {{ @most[tid] = max(self->n); }}
    profile-97 {{ @sampled[cpu] = count(); }}
"""
READS = 20_000
WAYS = [("amd64", "jump"), ("amd64", "trap"), ("arm64", "auto"), ("riscv64", "auto")]


def turn(cpu: int, on: bool) -> str:
    return f"echo {on:d} >/sys/devices/system/cpu/cpu{cpu}/online"


@pytest.fixture(params=WAYS, ids="-".join)
def opened(
    request: pytest.FixtureRequest, program_for: Callable[[str, str], Path]
) -> tuple[kinst.Machine, dict[str, str]]:
    """Open a guest of four CPUs with the options of its traces."""
    isa, way = request.param
    copies = [program_for(name, isa) for name in ("hops", "reads")]
    machine = kinst.boot(isa, copies=copies, cpus=4, memory="512m")
    request.addfinalizer(machine.close)
    return machine, {"plant": way}


def test_before_the_trace_and_during_it(opened: tuple[kinst.Machine, dict[str, str]]) -> None:
    """Per-CPU data also exists for CPUs that were off when it was allocated."""
    machine, options = opened
    off = machine.execute(f"{turn(2, False)}; {turn(3, False)}; nproc")
    assert off.output.split() == [b"2"]
    command = f"hops 100; {turn(2, True)}; hops 100; {turn(1, False)}; hops 100; {turn(1, True)}"
    result = machine.run(PROGRAM, command, options)
    assert result.output.decode().splitlines() == ["hops 2 400", "hops 3 600", "hops 2 400"]
    assert result.aggregations["on"] == {(0,): 600, (1,): 400, (2,): 400}
    assert set(result.aggregations["sampled"]) == {(0,), (1,), (2,)}
    assert not result.lost and not result.faults and result.status == 0
    again = machine.run(PROGRAM, f"{turn(3, True)}; hops 50; sleep 2", options)
    assert again.aggregations["on"] == {(cpu,): 100 for cpu in range(4)}
    assert set(again.aggregations["sampled"]) == {(cpu,) for cpu in range(4)}


def test_under_what_is_counted(opened: tuple[kinst.Machine, dict[str, str]]) -> None:
    """Four processes at a time read, again and again, while each CPU but the first is turned off
    and on.

    Processes of a CPU that is turned off continue on another one, with their data.
    """
    machine, options = opened
    reader = f"while ! [ -e /tmp/over ]; do reads {READS}; done &"
    rounds = "; ".join(f"{turn(cpu, False)}; {turn(cpu, True)}" for cpu in (1, 2, 3, 2, 1))
    command = f"{reader * 4} {rounds}; touch /tmp/over; wait"
    result = machine.run(PROGRAM, command, options)
    generations = result.output.count(b"reads ")
    assert generations >= 4
    assert result.aggregations["reads"] == {(): generations * READS}
    assert sorted(result.aggregations["most"].values()) == [READS] * generations
    assert not result.lost and not result.faults and result.status == 0
    assert machine.execute("nproc").output.split() == [b"4"]
