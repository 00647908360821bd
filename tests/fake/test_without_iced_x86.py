"""kinst without the Python package iced-x86, which has no wheel for arm64 hosts: kernels of other
instruction sets are traced, and an error says what amd64's need."""

from __future__ import annotations

import subprocess
import sys

from tests.fake.fake_kernel_file import kernel_file

HIDDEN = "import sys\nsys.modules['iced_x86'] = None\n"
WORKS = """
import kinst
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import trace

for isa in ("arm64", "riscv64"):
    for way in ("auto", "stop"):
        machine, work = FakeMachine(isa), [Call("leaf", (n, n)) for n in range(7)]
        settings = {"plant": way}
        counted = trace(machine, "kinst::leaf:0 { @ = count(); }", work, settings=settings)
        print(isa, way, counted.numbers)
print(kinst.host().run("BEGIN { @ = sum(42); exit(0); }").aggregations[""][()])
"""
COMMAND = """
from kinst.cli import start
sys.exit(start.main())
"""
SAID = (
    "kinst: to trace amd64 kernels and programs, kinst needs the Python package iced-x86 (pip"
    " install 'iced-x86>=1.21,<2', which needs Rust on hosts that are not x86-64)\n"
)


def ran(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script in a process that cannot import iced-x86."""
    command = [sys.executable, "-c", HIDDEN + script, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_other_instruction_sets_are_traced() -> None:
    done = ran(WORKS)
    counts = [f"{isa} {way} [7]" for isa in ("arm64", "riscv64") for way in ("auto", "stop")]
    assert done.stdout.splitlines() == [*counts, "42"], done.stderr


def test_a_kernel_of_amd64_is_refused_with_what_to_install() -> None:
    words = ("--gdb", "localhost:1", "--debug", str(kernel_file("amd64")))
    done = ran(COMMAND, *words, "-n", "kinst::leaf:0 { @ = count(); }")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", SAID)
