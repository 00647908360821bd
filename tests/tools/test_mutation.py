"""tools.mutation records what tests reach: long tests are cut, without harm to others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

PACKAGE = """
def begun():
    return 1

def ended():
    return 2
"""
TESTS = """
import threading

import llvmlite.binding as llvm
import pytest
from made import begun, ended

MODULE = "define i64 @f(i64 %x) {\\n ret i64 %x\\n}"

@pytest.fixture(scope="module")
def long():
    begun()
    while True:
        pass

def test_a_fixture_is_cut(long):
    ended()

def test_another_one_has_it(long):
    ended()

@pytest.mark.parametrize("time", range(8))
def test_llvm_is_cut(time):
    begun()
    while True:
        llvm.parse_assembly(MODULE)
        sum(range(20_000))

@pytest.mark.parametrize("time", range(8))
def test_llvm_in_another_thread(time):
    made = []
    thread = threading.Thread(target=lambda: made.append(llvm.parse_assembly(MODULE)), daemon=True)
    thread.start()
    thread.join(60)
    assert made
    ended()

def test_that_fails():
    assert begun() == ended()
"""
RUN = """
import sys
from pathlib import Path
from tools.mutation import recorded
recorded.LONGEST = 0.05
root = Path(sys.argv[1])
options = ["-q", "-p", "no:cacheprovider", "-n", "0", "--rootdir", str(root), str(root / "tests")]
sys.exit(recorded.record(root, options, root / "result.json"))
"""


@pytest.mark.full
def test_long_tests_are_cut_and_the_others_are_not_hurt(tmp_path: Path) -> None:
    for name, text in (("kinst/made.py", PACKAGE), ("tests/test_made.py", TESTS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, timeout=300,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}/kinst:{ROOT}"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "INTERNALERROR" not in ran.stdout
    left_out = [line for line in ran.stderr.splitlines() if "is left out" in line]
    assert [line.rpartition("::")[2] for line in left_out] == ["test_that_fails"]
    made = json.loads((tmp_path / "result.json").read_text())
    names = [test.rpartition("::")[2] for test in made["tests"]]
    assert len(names) == 2 + 8 + 8 + 1
    # The test whose fixture was cut takes as long, and must not run among the quick ones.
    seconds = {test.rpartition("::")[2]: found for test, found in made["seconds"].items()}
    assert all(
        seconds[name] >= 0.05 for name in names if "fixture" in name or "another_one" in name
    )
    assert seconds["test_llvm_is_cut[0]"] >= 0.05
    reached = {line: {names[k] for k in tests} for line, tests in made["lines"].items()}
    llvm = {f"test_llvm_is_cut[{time}]" for time in range(8)}
    assert reached["kinst/made.py:3"] == {"test_a_fixture_is_cut", *llvm}
    others = {f"test_llvm_in_another_thread[{time}]" for time in range(8)}
    assert reached["kinst/made.py:6"] == others
