"""kinst's named commands are found, have help, and check their arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kinst.cli import command
from kinst.cli.commands import command as named
from kinst.cli.commands import commands
from kinst.cli.options import help_text
from tests import ROOT

MANUAL = (ROOT / "docs/kinst.1").read_text()
FRAME = {"address": "0x1", "module": "vmlinux", "function": "vfs_read", "offset": 16}
END = {"type": "end", "reason": "exit", "status": 0}


def kept(folder: Path, name: str, count: int) -> str:
    """Return a file as --json writes it: one stack, with a count."""
    rows = [{"key": [{"stack": "kernel", "frames": [FRAME]}], "value": count}]
    table = {"type": "aggregation", "name": "n", "function": "count", "keys": ["stack"],
             "final": True, "rows": rows}  # fmt: skip
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in (table, END)))
    return str(path)


@pytest.mark.parametrize("name", commands())
def test_each_has_help_and_is_named_in_the_others(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown == named(name).HELP and shown.startswith(f"usage: kinst {name} ")
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert re.search(rf"^kinst {name} ", help_text(), re.MULTILINE)
    assert f".It Cm {name}" in MANUAL.split(".Sh COMMANDS")[1].split(".Sh ENVIRONMENT")[0]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["diff", "a"], 2, "kinst: two results are needed (kinst diff A B)"),
        (["diff", "--nosuch", "a", "b"], 2, "kinst: unknown option --nosuch (kinst diff --help)"),
        (["diff", "--level"], 2, "kinst: --level needs a value"),
        (["diff", "--level=x", "a", "b"], 2,
         "kinst: --level x: no such level (instruction, line, function)"),
        (["diff", "/nosuch/a", "/nosuch/b"], 1,
         "kinst: failed to open /nosuch/a: No such file or directory"),
        (["flame", "a", "b"], 2, "kinst: one result at a time (kinst flame RESULT)"),
        (["flame", "--nosuch"], 2, "kinst: option --nosuch not recognized"),
        (["flame", "-l", "-n", "BEGIN"], 2,
         "kinst: this command traces: it has no -l, -e, -S and --dump"
         " (kinst without a command has them)"),
        (["cover", "-c", "ls"], 2,
         "kinst: no functions or files to cover (kinst cover 'fs/*.c' -c CMD)"),
        (["cover", "-n", "BEGIN", "vfs_read"], 2,
         "kinst: cover makes its own program and takes none (--if EXPR limits what it counts)"),
        (["cover", "--since", "/nosuch", "vfs_read"], 1,
         "kinst: failed to open /nosuch: No such file or directory"),
        (["flow", "-c", "ls"], 2,
         "kinst: kinst flow needs one function (kinst flow FUNCTION -c CMD)"),
        (["flow", "--boot", "setup_arch", "-c", "ls"], 2,
         "kinst: flow --boot shows a call of the boot, before a command runs"
         " (leave out -c, or --boot)"),
        (["flow", "--boot", "--cpus", "4", "setup_arch"], 2,
         "kinst: flow --boot gives the guest one CPU (leave out --cpus)"),
        (["flow", "--boot", "setup_arch", "--if", "1"], 2,
         "kinst: flow --boot uses no D program: it shows the first call of the boot"
         " (leave out --if and -d)"),
        (["flow", "main", "--process", "-c", "ls"], 2,
         "kinst: kinst flow follows calls in a kernel; in user programs, kinst only counts (kinst"
         " count FUNCTION -c CMD)"),
        (["flow", "-n", "BEGIN", "vfs_read"], 2,
         "kinst: flow makes its own programs and takes none (--if says which call)"),
        (["annotate", "-c", "ls"], 2,
         "kinst: no function to annotate (kinst annotate FUNCTION... -c CMD)"),
        (["annotate", "--order", "x", "f"], 2,
         "kinst: --order x: no such order (address, source)"),
        (["annotate", "-n", "BEGIN", "f"], 2,
         "kinst: annotate makes its own program and takes none (--if and --by change it)"),
        (["annotate", "f", "--source", "/nosuch"], 1,
         "kinst: --source /nosuch: no such folder or archive"),
        (["annotate", "f", "/nosuch"], 1,
         "kinst: failed to open /nosuch: No such file or directory"),
        (["annotate", "a.json", "b.json"], 2,
         "kinst: one result at a time (kinst annotate FUNCTION... RESULT)"),
        (["annotate", "f", "--from", "/nosuch"], 1,
         "kinst: --from RESULT is now an argument: kinst annotate FUNCTION... RESULT\n"
         "kinst: failed to open /nosuch: No such file or directory"),
        (["flame", "/nosuch"], 1, "kinst: failed to open /nosuch: No such file or directory"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_line(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == message + "\n" + ("Try 'kinst --help'.\n" if status == 2 else "")


def test_diff_of_kept_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = kept(tmp_path, "a", 2), kept(tmp_path, "b", 3)
    assert command.main(["diff", a, a]) == 0
    assert capsys.readouterr().out == ""
    assert command.main(["diff", a, b]) == 1
    assert "2  3  1.50  vfs_read+0x10\n" in capsys.readouterr().out
    assert command.main(["diff", "--normalize", "--level", "function", a, b]) == 0


def test_flame_of_a_kept_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path, "a", 5)
    assert command.main(["flame", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out == "vfs_read 5\n"
    picture = tmp_path / "a.svg"
    assert command.main(["flame", "-o", str(picture), str(tmp_path / "a")]) == 0
    assert "vfs_read (5, 100.00%)" in picture.read_text()
    assert command.main(["flame", "-o", str(tmp_path / "no/a.svg"), str(tmp_path / "a")]) == 1
    assert "failed to write" in capsys.readouterr().err


def test_flame_shows_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["flame", "-d"]) == 0
    assert capsys.readouterr().out == "profile-97 /arg0 && pid/ { @[stack()] = count(); }\n"
