"""stack() beside the kernel's own unwinder, hit by hit."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests import ROOT
from tests.vm.command import Result, Row, counts, kinst, list_functions
from tests.vm.language.kernel_stacks import choose_pairs, compare, draw

pytestmark = pytest.mark.vm

NAMES = ROOT / "tests/vm/functions.txt"


def seed_of_today() -> int:
    """Return the seed; KINST_SEED repeats a run."""
    return int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 32))


def test_stacks_are_the_kernels(
    read_path: dict[str, list[Row]], reads: Path, tmp_path: Path
) -> None:
    """stack() equals the stack that the kernel's stacktrace trigger records for the same hit.

    The instructions are on the path of a read(2).
    """
    chosen = []
    for rows in read_path.values():
        sites = [row for row in rows if row.offset > 0]
        chosen += choose_pairs(rows, sites)[:8]
    found = compare(chosen, "reads 20", "reads", tmp_path, [reads])
    assert found.differences == []
    assert not found.missed and found.sites >= 25 and min(found.ways.values()) >= 5, found


@pytest.mark.slow
def test_stacks_at_500_random_sites(
    prepared: Prepared, guest_program: Callable[[str], Path], tmp_path: Path
) -> None:
    """Instructions are drawn at random from those that a workload executes in 200 functions."""
    seed = seed_of_today()
    print(f"KINST_SEED={seed}")
    shown = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True, check=True)
    seen = Counter(w[2] for w in map(str.split, shown.stdout.splitlines()) if w[1] in "tT")
    names = [name for name in NAMES.read_text().split() if seen[name] == 1]
    functions = list_functions(*names)
    program = guest_program("workload")
    description = ", ".join(f"kinst::{name}:" for name in names)
    count = '/execname == "workload"/ { @[probefunc, probename] = count(); }'
    ran = kinst(
        "-q", "-n", f"{description} {count}", "-c", "workload 2 1", copy=[program]
    ).good()  # fmt: skip
    hit = {(name, int(offset)) for name, offset in counts(ran.out)}
    chosen = draw(functions, hit, 600, seed)
    found = compare(chosen, "workload 6 1", "workload", tmp_path, [program])
    print(f"{found.sites} sites {found.ways}, {found.stacks} stacks")
    print(f"the kernel refused {found.refused} kprobes, and missed hits of {found.missed}")
    assert found.differences == [], (seed, found.done.err)
    assert found.sites >= 500 and min(found.ways.values()) >= 100, (seed, found)


HERE = 'kinst::ksys_lseek:0 /execname == "frames"/'
USER = f"""
{HERE} {{ printf("stack"); ustack(); }}
{HERE} {{ printf("two"); ustack(2); }}
{HERE} {{ printf("depth %d\\n", ustackdepth); }}
{HERE} {{ printf("caller %x\\n", ucaller); }}
{HERE} {{ printf("registers %x %x\\n", uregs[R_SP], uregs[R_RBP]); }}
{HERE} {{ printf("arguments %d %d\\n", uregs[R_RDI], uregs[R_RSI] - 77); }}
{HERE} {{ @f[ufunc(uregs[R_PC] - (arg_ & 1))] = count(); }}
{HERE} {{ @[ustack(3)] = count(); }}
{HERE} {{ uaddr(ucaller); usym(ucaller); ufunc(uregs[R_PC]); umod(ucaller); uaddr(4660);
    printf("\\n"); }}
END {{ printa("func %A %@d\\n", @f); printa("three%k%@d\\n", @); }}
""".replace("arg_", "uregs[R_RSI]")


def symbols_of(program: Path) -> dict[str, int]:
    shown = subprocess.run(["nm", str(program)], capture_output=True, text=True, check=True).stdout
    return {w[2]: int(w[0], 16) for w in map(str.split, shown.splitlines()) if w[1:2] == ["T"]}


def check_user_stacks(done: Result, program: Path, count: int) -> None:
    """Compare with the program's own report: return addresses of three of its functions, and the
    registers of the innermost.

    Its main() is called by the C library.
    """
    at = symbols_of(program)
    ((text, sp, fp),) = re.findall(r"^frames (.*)\nsp (\w+) fp (\w+) sum 1$", done.guest, re.M)
    back = [int(word, 16) for word in text.split()]
    named = [
        f"frames`{name}+{address - at[name]:#x}"
        for name, address in zip(("middle", "outer", "main"), back, strict=True)
    ]
    stacks = re.findall(r"^stack\n((?: +.*\n)+)", done.out, re.M)
    assert len(stacks) == count, done
    for stack in stacks:
        inner, *outer = stack.split()
        assert inner.startswith("frames`innermost+0x") and outer[:3] == named, stack
    (depth,) = {int(n) for n in re.findall(r"^depth (\d+)$", done.out, re.M)}
    assert depth == len(stacks[0].split())
    assert re.findall(r"^caller (\w+)$", done.out, re.M) == [f"{back[0]:x}"] * count
    twos = re.findall(r"^two\n((?: +.*\n)+)", done.out, re.M)
    assert [two.split() for two in twos] == [[inner, named[0]]] * count
    assert re.findall(r"^registers (\w+) (\w+)$", done.out, re.M) == [(sp, fp)] * count
    arguments = re.findall(r"^arguments (\d+) (\d+)$", done.out, re.M)
    assert sorted(arguments) == sorted(("0", str(i & 1)) for i in range(count))
    # Different addresses in the same function are one key.
    assert re.findall(r"^func (\S+) (\d+)$", done.out, re.M) == [("frames`innermost", str(count))]
    three = f"three\n{'':14}{inner}\n{'':14}{named[0]}\n{'':14}{named[1]}\n{count}\n"
    assert three in done.out
    symbols = "  ".join(
        f"{name:<50}" for name in ("", named[0], "frames`middle", "frames`innermost", "frames")
    ).lstrip(" ")
    assert done.out.count(symbols + "  " + "0x1234".ljust(50)) == count


@pytest.mark.parametrize("way", ["jump", pytest.param("stop", marks=pytest.mark.slow)])
def test_user_stacks(guest_program: Callable[[str], Path], way: str) -> None:
    program = guest_program("frames")
    done = kinst(
        "-q", "-x", f"plant={way}", "-n", USER, "-c", "frames 6", copy=[program]
    ).good()  # fmt: skip
    check_user_stacks(done, program, 6)


def test_threads_without_user_mode(reads: Path) -> None:
    """A kernel thread and BEGIN have no user stack; their registers are an error.

    One CPU's threads only: two that run the clauses at the same time would both find `seen` zero.
    """
    thread = "kinst::wq_worker_running:0"
    program = f"""
        int seen;
        BEGIN {{ printf("own %d %x", ustackdepth, ucaller); ustack(5); }}
        BEGIN {{ trace(uregs[R_PC]); }}
        {thread} /cpu == 0 && !seen/ {{ printf("worker %d %x", ustackdepth, ucaller); ustack(5); }}
        {thread} /cpu == 0 && !seen++/ {{ trace(uregs[R_PC]); }}
        ERROR {{ printf("error %d\\n", arg4); }}
        tick-100ms /seen/ {{ exit(0); }}"""
    done = kinst("-q", "-n", program, "-c", "sleep 500", copy=[reads]).good()
    assert done.out.replace("\n", "") == "own 0 0error 3worker 0 0error 3", done
