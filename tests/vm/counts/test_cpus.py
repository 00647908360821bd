"""Guests of 1, 2, 4 and 8 CPUs.

Counts of threads that stay on a CPU, and of one that moves, equal the program's own count of its
reads.  Data of each CPU and thread, and a CPU that is turned off, are tested too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm.command import counts, kinst

HOPS = 500
# read(2) of /dev/zero calls one of them, depending on the kernel.
SITE = "kinst::read_zero:0, kinst::read_iter_zero:0"
# Each read of the moving thread is in self->, and every hundredth is in a speculation.
PROGRAM = """
    {site} /execname == "hops"/ {{ @on[cpu] = count(); @all = count(); self->n++; }}
    {site} /execname == "hops" && pid == tid/ {{ @most = max(self->n); }}
    {site} /execname == "hops" && pid == tid && self->n % 100 == 0/ {{
        self->one = speculation(); speculate(self->one); printf("read %d\\n", self->n);
    }}
    {site} /self->one && self->n % 200 == 0/ {{ commit(self->one); self->one = 0; }}
    {site} /self->one/ {{ discard(self->one); self->one = 0; }}
    profile-97 {{ @sampled[cpu] = count(); }}
    END {{
        printf("ALL\\n"); printa(@all); printf("MOST\\n"); printa(@most);
        printf("ON\\n"); printa(@on); printf("SAMPLED\\n"); printa(@sampled);
    }}
"""
PARTS = ("ALL", "MOST", "ON", "SAMPLED", "LATER")
EVERY = [
    pytest.param(("amd64", 4, "jump")),
    pytest.param(("amd64", 1, "jump"), marks=pytest.mark.slow),
    pytest.param(("amd64", 2, "trap"), marks=pytest.mark.slow),
    pytest.param(("amd64", 8, "jump"), marks=pytest.mark.slow),
    pytest.param(("amd64", 8, "trap"), marks=pytest.mark.slow),
    *(
        pytest.param((isa, cpus, "auto"), marks=pytest.mark.slow)
        for isa in ("arm64", "riscv64")
        for cpus in (1, 4, 8)
    ),
]


def parts(out: str) -> dict[str, str]:
    """Return the output below each of PARTS, and, as "", before the first of them."""
    found, name = {"": ""}, ""
    for line in out.splitlines():
        if line in PARTS:
            name = line
        else:
            found[name] = found.get(name, "") + line + "\n"
    return found


@pytest.mark.parametrize("case", EVERY, ids=lambda case: "-".join(map(str, case)))
def test_every_cpu_is_counted(
    case: tuple[str, int, str], program_for: Callable[[str, str], Path]
) -> None:
    isa, cpus, way = case
    done = kinst(
        f"--vm={isa}", "--cpus", str(cpus), "-q", "-x", f"plant={way}", "-x", "nspec=16",
        "-n", PROGRAM.format(site=SITE), "-c", f"hops {HOPS}",
        copy=[program_for("hops", isa)],
    ).good()  # fmt: skip
    assert f"hops {cpus} {2 * HOPS * cpus}" in done.guest
    found = parts(done.out)
    numbers = range(cpus)
    assert found["ALL"].split() == [str(2 * HOPS * cpus)]
    assert found["MOST"].split() == [str(HOPS * cpus)]
    assert counts(found["ON"]) == {(str(cpu),): 2 * HOPS for cpu in numbers}
    assert set(counts(found["SAMPLED"])) == {(str(cpu),) for cpu in numbers}
    kept = [line for line in found[""].splitlines() if line]
    assert sorted(kept) == sorted(f"read {n}" for n in range(200, HOPS * cpus + 1, 200))


def test_a_cpu_that_is_off_is_not_sampled_and_one_that_comes_is(
    program_for: Callable[[str, str], Path],
) -> None:
    """The CPU is turned off before the trace's reads, and comes back while the trace runs.

    Firings of the timer that a busy host misses are told, so only CPUs are compared.
    """
    switch = "/sys/devices/system/cpu/cpu2/online"
    program = f"""
        fbt::cpu_device_down:return {{ off = 1; }}
        fbt::cpu_device_up:entry {{ off = 0; comes = 1; }}
        {SITE} /execname == "hops"/ {{ @on[cpu] = count(); }}
        profile-97 /off/ {{ @sampled[cpu] = count(); }}
        profile-97 /comes/ {{ @later[cpu] = count(); }}
        END {{
            printf("ON\\n"); printa(@on); printf("SAMPLED\\n"); printa(@sampled);
            printf("LATER\\n"); printa(@later);
        }}
    """
    command = f"echo 0 >{switch}; sleep 3; hops 100; echo 1 >{switch}; hops 100; sleep 3"
    done = kinst(
        "--cpus", "3", "--memory", "512m", "-q", "-n", program, "-c", command,
        copy=[program_for("hops", "amd64")],
    ).good()  # fmt: skip
    assert done.guest.split("\n")[:2] == ["hops 2 400", "hops 3 600"]
    found = parts(done.out)
    assert counts(found["ON"]) == {("0",): 400, ("1",): 400, ("2",): 200}
    assert set(counts(found["SAMPLED"])) == {("0",), ("1",)}, done
    assert set(counts(found["LATER"])) == {("0",), ("1",), ("2",)}, done
