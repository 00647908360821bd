"""kinst test without a kernel: its output, as prove(1) and a reader of JUnit's XML take it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from junitparser import Failure, JUnitXml, Skipped

from kinst.cli import command

GOOD = 'BEGIN { x = 3; @ = count(); exit(0); }\nTEST "x # 1" { x == 3; @ == 1; }\n'
BAD = """\
BEGIN { x = 3; printf("hello\\n<\\001>\\n"); @ = count(); exit(0); }
END { x++; }
TEST "right" { x == 4; }
TEST "wrong" { 1; x * @ == 5; }
TEST "not asked" /x < 0 && @/ { 0; }
"""


def written(folder: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / f"{name}.d").write_text(text)
    return [str(folder / f"{name}.d") for name in files]


def test_tap_and_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = written(tmp_path, good=GOOD, bad=BAD)
    xml = tmp_path / "out.xml"
    assert command.main(["test", "--junit", str(xml), "-q", good, bad]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:15] == [
        "TAP version 13", "1..6",
        f"ok 1 - {good}: the trace", rf"ok 2 - {good}: x \# 1",
        f"ok 3 - {bad}: the trace", f"ok 4 - {bad}: right", f"not ok 5 - {bad}: wrong",
        "  ---", f"  at: '{bad}:4'", "  expression: 'x * @ == 5'", "  values:",
        "    'x': '4'", "    '@': '1'", "  ...",
        f"ok 6 - {bad}: not asked # SKIP x < 0 && @ does not hold",
    ]  # fmt: skip
    assert lines[15] == "# hello"

    suites = JUnitXml.fromfile(str(xml))
    assert (suites.tests, suites.failures, suites.skipped, suites.errors) == (6, 1, 1, 0)
    found = [(suite.name, case.name, case.result) for suite in suites for case in suite]
    assert [(name, case) for name, case, _ in found] == [
        (good, "the trace"), (good, "x # 1"), (bad, "the trace"), (bad, "right"),
        (bad, "wrong"), (bad, "not asked"),
    ]  # fmt: skip
    assert [len(result) for _, _, result in found] == [0, 0, 0, 0, 1, 1]
    failure, skipped = found[4][2][0], found[5][2][0]
    assert isinstance(failure, Failure) and isinstance(skipped, Skipped)
    assert failure.message == "x * @ == 5"
    assert failure.text.splitlines() == [f"{bad}:4: x * @ == 5", "x = 4", "@ = 1"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("BEGIN { exit(7); }", "exit()'s status is 7"),
        ("BEGIN { trace(*(int *)8); } BEGIN { exit(0); }",
         "exit status 114: an action failed (fail=errors)"),
        ("BEGIN { x = ; }", 'failed to compile: {file}:1:13: syntax error near ";"'),
        ('TEST "x" {', "failed to compile: {file}:1:11: syntax error near end of input"),
        ('BEGIN { exit(0); }\n\nTEST "x" { nosuch == 1; }',
         "failed to compile: {file}:3:"),
    ],
)  # fmt: skip
def test_a_trace_that_fails(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = written(tmp_path, a=text)
    assert command.main(["test", file]) == 1
    out = capsys.readouterr().out
    assert f"not ok 1 - {file}: the trace\n" in out
    assert f"  message: '{why.format(file=file)}".replace("()'s", "()''s") in out


@pytest.mark.parametrize(
    "text",
    [
        'BEGIN { exit(7); }\nTEST "as it must" { $status == 7; }',
        "#pragma D option fail=none\nBEGIN { trace(*(int *)8); } BEGIN { exit(0); }",
        "#pragma D option fail=drops\nBEGIN { trace(*(int *)8); } BEGIN { exit(0); }",
        "#pragma D test timeout 0.2\nBEGIN { x = 1; }",
    ],
)
def test_a_trace_that_does_not(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = written(tmp_path, a=text)
    assert command.main(["test", file]) == 0, capsys.readouterr().out


def test_the_command_line_may_say_what_fails(tmp_path: Path) -> None:
    (file,) = written(tmp_path, a="BEGIN { trace(*(int *)8); } BEGIN { exit(0); }")
    assert command.main(["test", "-x", "fail=drops", file]) == 0
    assert command.main(["test", str(tmp_path / "nosuch.d")]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no test files (kinst test FILE...)"),
        (
            ["-n", "BEGIN"],
            "kinst test takes test files, not programs of -n, -s and the like (kinst test FILE...)",
        ),
        (
            ["-l", "a.d"],
            "kinst test has no -l, -S, --dump and -o (kinst without a command has them)",
        ),
        (["a.d", "--junit"], "--junit needs a value"),
    ],
)
def test_a_wrong_command_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["test", *words]) == 2
    assert capsys.readouterr().err == f"kinst: {message}\nTry 'kinst --help'.\n"


@pytest.mark.full  # prove is written in perl, which make test does not need
def test_prove_takes_it(tmp_path: Path) -> None:
    good, bad = written(tmp_path, good=GOOD, bad=BAD)
    runs = f"{Path(sys.executable).with_name('kinst')} test"
    done = subprocess.run(["prove", "--exec", runs, good], capture_output=True, text=True)
    assert done.returncode == 0 and "Files=1, Tests=2," in done.stdout, done
    assert "Result: PASS" in done.stdout
    done = subprocess.run(["prove", "--exec", runs, bad], capture_output=True, text=True)
    assert done.returncode == 1 and "Failed 1/4 subtests" in done.stdout, done
    assert "(less 1 skipped subtest: 2 okay)" in done.stdout
    assert "Failed test:  3" in done.stdout
