"""docs/extending.md, word by word: tests put the page's code into a temporary folder and use
it."""

from __future__ import annotations

import csv
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kinst.codegen.subroutines
import kinst.isa
import kinst.machines
import kinst.providers
import kinst.systems
from kinst import api
from kinst.api.names import vocabulary
from kinst.core.displaced import Refused
from kinst.core.errors import DError, KinstError, TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Abilities, MachineConfig, MachineEvent, Target
from kinst.core.machine_kind import MachineKind
from kinst.core.options import MachineOptions
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.ways import Choice, PlantingAbility, choose
from tests import ROOT
from tests.contracts import missing
from tests.fake.fake_kernel_file import kernel_file
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import found_by_name, trace
from tests.tiers import ISAS

TEXT = (ROOT / "docs/extending.md").read_text()
Add = Callable[[ModuleType, str], None]
CACHES = (
    kinst.systems.kinds, kinst.providers.load_all, kinst.providers.interfaces,
    kinst.providers.of_instructions, kinst.providers.of_functions,
    kinst.providers._kernel_probe, kinst.machines.names, kinst.machines.kinds,
    kinst.codegen.subroutines.load_all, kinst.codegen.subroutines.prototypes,
)  # fmt: skip


def example(file: str) -> str:
    """Return the code that the page shows for a file."""
    found = re.search(rf"`{re.escape(file)}`[^`]*```python\n(.*?)^```$", TEXT, re.S | re.M)
    assert found, f"docs/extending.md shows no {file}"
    return found[1]


def forget() -> None:
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Put the page's file for a package into a folder in which kinst looks for members of that
    package."""
    made: list[str] = []

    def put(package: ModuleType, name: str) -> None:
        kind = package.__name__.replace(".", "/")
        folder = tmp_path / kind
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(example(f"{kind}/{name}.py"))
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        made.append(f"{package.__name__}.{name}")
        forget()

    yield put
    monkeypatch.undo()
    for name in made:
        sys.modules.pop(name, None)
    forget()


def run(program: str, *calls: Call, **more: Any) -> str:
    """Return the output of a program, traced on a kernel that keeps its current thread in tp."""
    return trace(FakeMachine("riscv64"), program, calls, unknown=True, **more).out


def test_a_system_names_its_current_thread_by_a_register(add: Add) -> None:
    """tests/fake/kernel.c has the tasks: the task of CPU 1 is beta, thread 201 of process 200."""
    add(kinst.systems, "toy")
    kind = importlib.import_module("kinst.systems.toy").SYSTEM
    assert not missing(kinst.systems.SystemKind, kind)
    assert len(example("kinst/systems/toy.py").splitlines()) < 150
    body = """printf("%d %d %s %d %s %d %d;", pid, tid, execname, curpsinfo->pr_pid,
        curpsinfo->pr_fname, ((struct task *)curthread)->uid, EFAULT);"""
    out = run(f"fbt::leaf:entry {{ {body} }}", Call("leaf", (1, 2), 1), Call("leaf", (3, 4), 0))
    told = sorted(part.strip() for part in out.split(";") if part.strip())
    assert told == ["100 100 alpha 100 alpha 10 14", "200 201 beta 200 beta 11 14"]
    typed = run("fbt::leaf:entry { trace(curthread->comm); }", Call("leaf", (1, 2), 1))
    assert "beta" in typed


def test_what_such_a_system_does_not_know_is_refused_with_the_reason(add: Add) -> None:
    add(kinst.systems, "toy")
    for name, said in (
        ("gid", "gid is not known of the system toy"),
        ("ustack()", "ustack() is not known of the system toy"),
    ):
        with pytest.raises(DError) as found:
            run(f"fbt::leaf:entry {{ trace({name}); }}" if name == "gid"
                else f"fbt::leaf:entry {{ {name}; }}", Call("leaf", (1, 2), 1))  # fmt: skip
        assert found.value.message == said


def test_without_that_system_the_current_thread_is_refused_with_the_reason() -> None:
    with pytest.raises(DError, match="curthread needs a system that kinst knows"):
        run("fbt::leaf:entry { trace(curthread); }", Call("leaf", (1, 2), 1))


def test_a_provider_asks_the_system_for_its_system_calls(add: Add) -> None:
    add(kinst.systems, "toy")
    add(kinst.providers, "calls")
    program = """
        calls::work:entry { printf("%s %d %d;", probefunc, arg0, args[0]); }
        calls::work:return { printf("calls %d;", arg1); }
        fbt::work:return { printf("fbt %d;", arg1); }"""
    told = [part.strip() for part in run(program, Call("work", (3,), 0)).split(";")]
    results = {kind: value for kind, _, value in (one.partition(" ") for one in told if one)}
    assert results["work"] == "3 3"
    assert results["calls"] == results["fbt"] != ""
    counted = run("calls:::entry { @[probefunc] = count(); }",
                  *(Call("work", (n,), n % 2) for n in range(5)))  # fmt: skip
    assert counted.split() == ["work", "5"]


CSV = """
import sys
import kinst.render
kinst.render.__path__.append(sys.argv.pop(1))
from kinst.cli.start import main
sys.exit(main())
"""
PROGRAM = """BEGIN {
    trace(-7); printf("%s", "a,\\"b\\""); @["one, two", 2] = sum(40); @["one, two", 2] = sum(2);
    @sizes = lquantize(15, 0, 30, 10); exit(3);
}"""


def test_an_output_format_is_used_by_its_name(tmp_path: Path) -> None:
    """The command selects the format by name (BEGIN needs no machine), and Python's csv reads the
    output."""
    folder, out = tmp_path / "render", tmp_path / "out.csv"
    folder.mkdir()
    (folder / "csv.py").write_text(example("kinst/render/csv.py"))
    for option in (["--csv"], ["-x", "format=csv"]):
        out.unlink(missing_ok=True)
        argv = [sys.executable, "-c", CSV, str(folder), *option, "-o", str(out), "-n", PROGRAM]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 3, done.stderr
        record, *tables = csv.reader(out.read_text().splitlines())
        assert int(record[0]) > 0 and record[1:3] == ["0", "dtrace:::BEGIN"]
        assert record[3:] == ["-7", 'a,"b"']
        assert sorted(tables) == [["@", "one, two", "2", "42"], ["@sizes", "10", "20", "1"]]


def test_without_its_file_the_format_is_unknown() -> None:
    argv = [sys.executable, "-m", "kinst.cli.start", "-x", "format=csv", "-n", "BEGIN { exit(0); }"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "format=csv: no such format" in done.stderr


def test_a_system_without_system_calls_has_none_of_that_provider(add: Add) -> None:
    add(kinst.providers, "calls")
    with pytest.raises(DError) as found:
        run("calls::work:entry { trace(1); }", Call("work", (3,), 0))
    assert found.value.hint == "calls::NAME:entry and calls::NAME:return"


E_MACHINE = 18  # offset in an ELF header
WORK = [Call("exercise", (n,), n % 2) for n in range(3)]
A64_PROGRAM = """
    kinst::leaf:, kinst::choose: { @[probefunc, probename] = count(); }
    fbt::leaf:entry { @sums[arg0, args[1], regs[R_X0]] = sum(arg1); }
    fbt::work:return { @results[arg1] = count(); }"""


def a64_machine(folder: Path) -> FakeMachine:
    """Return the fake arm64 kernel with an ELF header that names another instruction set."""
    data = bytearray(kernel_file("arm64").read_bytes())
    data[E_MACHINE : E_MACHINE + 2] = (0xA64).to_bytes(2, "little")
    file = folder / "vmlinux"
    file.write_bytes(data)
    return FakeMachine("a64", hardware="arm64", file=file)


def test_an_instruction_set_that_only_stops_counts_as_one_that_plants(
    add: Add, tmp_path: Path
) -> None:
    """The system could plant, but this instruction set can only stop."""
    add(kinst.isa, "a64")
    machine = a64_machine(tmp_path)
    before = machine.text
    stopped = trace(machine, A64_PROGRAM, WORK)
    planted = trace(FakeMachine("arm64"), A64_PROGRAM, WORK)
    assert sorted(stopped.lines) == sorted(planted.lines) != []
    said = [line for line in stopped.said if "stop-planted" in line]
    assert said and not [line for line in planted.said if "stop-planted" in line]
    assert machine.text == before


def test_what_such_an_instruction_set_does_not_say_is_refused_with_the_reason(add: Add) -> None:
    add(kinst.isa, "a64")
    isa = kinst.isa.load("a64")
    assert kinst.isa.name_of_machine(0xA64) == "a64"
    assert len(example("kinst/isa/a64.py").splitlines()) < 150
    site = Site(Function("vmlinux", "f", 0x1000, 4), 0, bytes.fromhex("1f2003d5"))
    stopping = choose(site, b"", isa, PlantingAbility(0, trap=True, fault_hook=True), "", False)
    assert stopping == Choice("stop", "kinst makes no trampolines for this instruction set")
    displaced = isa.displace(site.code, 0x1000, 0x2000)
    assert displaced == isa.trampoline(site, b"", 0x2000, ()) == Refused(stopping.reason)
    assert isa.jump_patch(4, 0x1000, 0x2000) is None
    with pytest.raises(KinstError, match="does not know how QEMU runs a64 kernels"):
        isa.board.memory_map(1 << 30)


def test_an_instruction_set_without_what_is_required_is_not_made() -> None:
    class Nothing(Isa):
        name = "nothing"

    with pytest.raises(TypeError, match=r"abstract methods.*decode.*flow"):
        Nothing()  # type: ignore[abstract]


def test_its_answers_are_those_of_arm64(add: Add) -> None:
    """Flow of every instruction of the fake kernel and its page tables are the same as arm64's.

    Only for instructions that a64 does not tell apart may control go anywhere.
    """
    add(kinst.isa, "a64")
    isa, arm64 = kinst.isa.load("a64"), kinst.isa.load("arm64")
    machine = FakeMachine("arm64")
    start = machine.address("text_start")
    registers = {"TTBR1_EL1": 0x7_4158_0000, "TCR_EL1": 16 << 16 | 2 << 30, "cpsr": 5}
    assert isa.paging.root_of(registers).physical == arm64.paging.root_of(registers).physical
    assert not isa.paging.in_user_mode(registers)
    assert isa.paging.in_user_mode({"cpsr": 0})
    for one in arm64.decode(machine.text, start):
        known = arm64.flow(one.code, one.address)
        flow = isa.flow(one.code, one.address)
        anywhere = flow.kind == "indirect" and flow.falls_through
        told = (flow.kind, flow.target) == (known.kind, known.target)
        assert told or anywhere or (known.kind, flow.kind) == ("landing", "next"), one.text
        assert next(isa.decode(one.code, one.address)).text == one.text


@pytest.mark.parametrize("isa", kinst.isa.names())
def test_a_subroutine_is_one_file(add: Add, isa: str) -> None:
    add(kinst.codegen.subroutines, "bitcount")
    numbers = [0, 1, 0b1011, 1 << 63, (1 << 64) - 1]
    program = 'fbt::leaf:entry { printf("%d;", bitcount(arg0)); }'
    calls = [Call("leaf", (n, 0), 0) for n in numbers]
    counted = [int(n) for n in trace(FakeMachine(isa), program, calls).out.split(";") if n.strip()]
    assert counted == [n.bit_count() for n in numbers]
    constant = 'BEGIN { x = 0xf0f0; printf("%d", bitcount(x)); }'
    assert run(constant).strip() == "8", "the host's own probes compile it, too"


def test_calls_of_a_new_subroutine_are_checked(add: Add) -> None:
    add(kinst.codegen.subroutines, "bitcount")
    assert vocabulary().words["bitcount"] == "subroutine"
    for call, tag in (("bitcount()", "D_PROTO_LEN"), ('bitcount("x")', "D_PROTO_ARG")):
        with pytest.raises(DError) as found:
            run(f"BEGIN {{ trace({call}); }}")
        assert found.value.tag == tag


def test_without_its_file_the_subroutine_is_not_there() -> None:
    with pytest.raises(DError, match="undefined function name: bitcount"):
        run("BEGIN { trace(bitcount(1)); }")


def text_in_a_file(machine: FakeMachine, folder: Path) -> str:
    """Return the kernel's text as FILE@START, with the first instruction of leaf overwritten."""
    file, text, leaf = folder / "text", bytearray(machine.text), machine.address("leaf")
    offset, patch = leaf - machine.address("text_start"), machine.isa.breakpoint
    text[offset : offset + len(patch)] = patch
    file.write_bytes(text)
    return f"{file}@{machine.address('text_start'):#x}"


def test_the_smallest_machine_is_read(add: Add, tmp_path: Path) -> None:
    """A listing shows the code of the file, not of the kernel's ELF file."""
    add(kinst.machines, "core")
    assert "core" in kinst.machines.names()
    kind = kinst.machines.load("core")
    assert not missing(MachineKind, kind)
    machine = FakeMachine("arm64")
    address = text_in_a_file(machine, tmp_path)
    target = kind.open(MachineConfig(load("arm64"), MachineOptions(address=address)))
    assert not missing(Target, target)
    with (
        found_by_name(target, unknown=True),
        api.Machine(api.Request(MachineOptions(debug=str(kernel_file("arm64"))))) as opened,
    ):
        (code,) = opened.code("leaf")
    first, *rest = [one.code for one in code.instructions]
    assert first == machine.isa.breakpoint
    assert b"".join(rest) == machine.read(machine.address("leaf") + 4, 4 * len(rest))


def test_the_smallest_machine_refuses_a_trace_with_its_own_reason(add: Add, tmp_path: Path) -> None:
    add(kinst.machines, "core")
    machine = FakeMachine("arm64")
    config = MachineConfig(load("arm64"), MachineOptions(address=text_in_a_file(machine, tmp_path)))
    target = kinst.machines.load("core").open(config)
    with pytest.raises(TargetError, match="a memory dump does not run"):
        trace(
            machine, "fbt::work:entry { @ = count(); }", target=target, unknown=True, command=False
        )


class Stoppable(Target):
    """A machine of emulated CPUs that can only be read and stopped."""

    abilities = Abilities()

    def __init__(self, machine: FakeMachine) -> None:
        self.isa, self.cpus, self._machine = machine.isa, machine.cpus, machine

    def read(self, address: int, size: int) -> bytes:
        return self._machine.read(address, size)

    def stop(self) -> None:
        self._machine.stop()

    def resume(self) -> None:
        self._machine.resume()

    def wait(self, timeout: float) -> MachineEvent | None:
        return self._machine.wait(timeout)

    def registers(self, cpu: int) -> Mapping[str, int]:
        return self._machine.registers(cpu)

    def insert_breakpoint(self, address: int) -> None:
        self._machine.insert_breakpoint(address)

    def remove_breakpoint(self, address: int) -> None:
        self._machine.remove_breakpoint(address)

    def step_over(self, cpu: int, address: int) -> None:
        self._machine.step_over(cpu, address)


@pytest.mark.parametrize("isa", ISAS)
def test_a_machine_that_is_read_and_stopped_traces(isa: str) -> None:
    """Every instruction of leaf is counted at each hit, the kernel's text is as before, and -c is
    refused."""
    machine, calls = FakeMachine(isa), [Call("leaf", (2, n)) for n in range(5)]
    before = machine.text
    machine.begin([*calls, Call("work", (3,))])
    program = """kinst::leaf: { @ = count(); } fbt::leaf:entry { @entry = count(); }
        fbt::work:entry { exit(0); }"""
    done = trace(machine, program, target=Stoppable(machine), unknown=True, command=False)
    hits, entries = done.numbers
    assert entries == len(calls)
    assert hits % len(calls) == 0 < hits
    assert machine.text == before and not machine.breakpoints
    with pytest.raises(TargetError, match="this machine runs no commands"):
        trace(machine, "fbt::leaf:entry { @ = count(); }", target=Stoppable(machine), unknown=True)
