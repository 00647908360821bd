"""kinst inject and kinst race: command lines, and whole sweeps on machines that pretend to have
guests."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinst import api
from kinst.cli import command, trying
from kinst.cli.commands.inject import numbers
from kinst.core.dtypes import VOID, FunctionType, PointerType
from kinst.core.errors import KinstError
from kinst.trials.programs import LISTING
from tests.trials.pretended_guest import NULL, Fault, PretendedMachine, PretendedMachines

WORDS = ["inject", "kmalloc return NULL", "--in", "m:f", "-c", "cmd"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inject", "kmalloc", "--in", "f"],
         "kinst: no command to run in the guest (kinst inject ... -c CMD)"),
        (["inject", "--in", "f", "-c", "ls"],
         "kinst: nothing to fail (kinst inject 'kmalloc* return NULL' --in F -c CMD)"),
        (["inject", "kmalloc", "-c", "ls"],
         "kinst: no functions below which calls fail (--in 'ext4:*')"),
        ([*WORDS, "-n", "BEGIN"],
         "kinst: inject makes its own program and takes none (kinst -w -n 'fbt::F:entry {"
         " return(0); }')"),
        ([*WORDS, "--live"],
         "kinst: inject makes kernels fail: it boots its own guests (leave out --live)"),
        ([*WORDS, "--boot"], "kinst: inject runs after the boot (leave out --boot)"),
        ([*WORDS, "--jobs", "0"], "kinst: --jobs 0: not a number from 1 to 64"),
        ([*WORDS, "--only", "x"], "kinst: --only x: not numbers (17, or 3,17-20)"),
        ([*WORDS, "--only", "0"], "kinst: --only 0: tries have numbers from 1 (17, or 3,17-20)"),
        (["race", "-c", "ls"], "kinst: kinst race needs one function (kinst race FUNCTION -c CMD)"),
        (["race", "f", "-c", "ls", "--at", "x"], "kinst: --at x: not a number"),
        (["plot", "-n", "tick-1s { @ = quantize(1); }", "-o", "x.png"],
         "kinst: -o x.png: plot draws no such pictures (FILE.svg, FILE.html)"),
        (["race", "f", "-c", "ls", "--delays", "1s"],
         "kinst: --delays 1s: not a time up to 500ms (10ms,1ms,100us)"),
        (["race", "f", "-c", "ls", "--delays", "long"],
         "kinst: --delays long: not a time up to 500ms (10ms,1ms,100us)"),
    ],
)  # fmt: skip
def test_wrong_command_lines(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    assert capsys.readouterr().err.splitlines()[0] == message


def test_numbers() -> None:
    assert numbers("3") == [3] and numbers("3,7-9, 12") == [3, 7, 8, 9, 12]


class CommandMachine(PretendedMachine):
    """A machine whose kernel has one function that can fail."""

    def __enter__(self) -> CommandMachine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    def prototype(self, module: str, function: str) -> Any:
        return FunctionType(PointerType(VOID), ()) if function == "kmalloc" else None

    def probes(self, description: str) -> list[Any]:
        assert description == "fbt::kmalloc:entry"
        return [
            SimpleNamespace(module="", function="kmalloc", way="jump", reason=""),
            SimpleNamespace(module="", function="kmalloc_x", way="refused", reason="not safe"),
        ]


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> PretendedMachines:
    made = PretendedMachines({3: Fault(log=NULL), 1: Fault(grown={"kmalloc-64": 1})})

    def opened(*_: object, **__: object) -> CommandMachine:
        made.opened += 1
        return CommandMachine(made, made.opened)

    monkeypatch.setattr(api, "Machine", opened)
    return made


def test_the_summary(machines: PretendedMachines, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*WORDS, "-v"]) == 1
    said = capsys.readouterr()
    assert "kinst: kmalloc_x is left out: not safe\n" in said.err
    assert "kinst: kmalloc return NULL\nkinst: 6 calls from 3 stacks can fail\n" in said.err
    title, figures, *rest = said.out.splitlines()
    assert title == "kinst inject 'kmalloc return NULL' --in m:f: `cmd`"
    assert figures.startswith("6 tries of calls: 1 oops, 1 leak, 4 failed (6 in ")
    assert rest[:4] == [
        "",
        "OOPS  call 3, f+0x10, the same again",
        f"    {NULL}",
        "    kmalloc+0x0 < f+0x10",
    ]
    assert f"    | {NULL}" in rest
    assert "    kinst inject 'kmalloc return NULL' --in m:f -c cmd -v --only 3" in rest
    assert "LEAK  call 1, f+0x8, the same again" in rest
    assert "    not freed in each of 8 repeats: 1 of kmalloc-64" in rest


def test_a_command_that_fails_by_itself(
    machines: PretendedMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "mount: mounting /dev/loop0 on /mnt failed"
    machines.faults = {LISTING: Fault(status=1, second=1, output=output)}
    command.main([*WORDS, "--only", "5"])
    told = "kinst: `cmd` fails, though nothing is made to fail: its status is 1\n    > mount: "
    assert told in capsys.readouterr().err


def test_files(
    machines: PretendedMachines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    more = ["--results", str(results), "--first"]
    assert command.main([*WORDS, *more, "-o", str(tmp_path / "a.json")]) == 1
    summary = json.loads((tmp_path / "a.json").read_text())
    assert [one["number"] for one in summary["tries"]] == [1, 3, 5]
    assert summary["counts"] == {"oops": 1, "leak": 1, "failed": 1}
    assert [one["outcome"] for one in summary["faults"]] == ["oops", "leak"]
    assert "return(0)" in summary["program"] and summary["ran"] == 3
    ran = len(machines.scripts)
    assert command.main([*WORDS, *more, "-o", str(tmp_path / "a.html")]) == 1
    assert len(machines.scripts) == ran + 1  # the baseline
    page = (tmp_path / "a.html").read_text()
    assert page.count("<details") == 2 and NULL in page and "{" in page
    assert "(0 in" not in capsys.readouterr().err


def test_only_some(machines: PretendedMachines, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*WORDS, "--only", "5-6"]) == 0
    assert "2 tries of calls: 2 failed" in capsys.readouterr().out


def test_the_program(machines: PretendedMachines, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*WORDS, "-d"]) == 0
    assert "fbt::kmalloc:entry" in capsys.readouterr().out and not machines.scripts


def test_race_says_how_many_tries_it_makes(
    machines: PretendedMachines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(_: object) -> None:
        raise KinstError("enough")

    probes = [SimpleNamespace(name=name, way="jump") for name in ("0", "4")]
    monkeypatch.setattr(CommandMachine, "probes", lambda *_: probes)
    monkeypatch.setattr(trying._SweepRun, "baseline", ends)
    words = ["race", "f", "-c", "ls", "--delays", "1ms"]
    command.main(words)
    command.main([*words, "--at", "4"])
    told = [line for line in capsys.readouterr().err.splitlines() if "CPU" in line]
    assert told == [
        "kinst: 2 instructions, 1 delay: 2 tries on CPU 0 (--at and --delays choose fewer)",
        "kinst: 1 instruction, 1 delay: 1 try on CPU 0",
    ]
