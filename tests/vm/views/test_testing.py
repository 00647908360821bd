"""kinst test and the fixture vm on a real kernel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.vm.command import KINST

pytestmark = pytest.mark.vm

READS = """\
#pragma D test command "reads 500"
kinst::vfs_read:0 /execname == "reads"/ { @all = count(); n++; }
fbt::ksys_read:entry /execname == "reads"/ { @by[probefunc, arg2] = count(); }
TEST "one byte each" { @by["ksys_read", 1] == 500; @all >= 500; @all == n; }
TEST "never so many" { @all < 500; }
"""
PANICS = """\
#pragma D test command "echo c > /proc/sysrq-trigger; sleep 1000"
fbt::vfs_write:entry { @ = count(); }
TEST "not judged" { @ >= 0; }
"""
AFTER = """\
#pragma D test command "exit 7"
fbt::vfs_read:entry { @ = count(); }
TEST "the command's status" { $status == 7; }
"""


def results(out: str) -> list[str]:
    return [line.split(" - ")[0] for line in out.splitlines() if line.startswith(("ok", "not ok"))]


def test_files_on_one_guest_and_on_the_next(
    guest_program: Callable[[str], Path], tmp_path: Path
) -> None:
    """Changes that one file makes to its guest do not affect the next file."""
    for name, text in (("reads", READS), ("panics", PANICS), ("after", AFTER)):
        (tmp_path / f"{name}.d").write_text(text)
    words = ["reads.d", "panics.d", "after.d", "--copy", guest_program("reads")]
    done = subprocess.run(
        [KINST, "test", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done
    assert results(done.stdout) == [
        "ok 1", "ok 2", "not ok 3", "not ok 4", "not ok 5", "ok 6", "ok 7"
    ]  # fmt: skip
    assert "  expression: '@all < 500'\n  values:\n    '@all': '50" in done.stdout
    gone = "  message: 'the guest is gone: Kernel panic - not syncing: sysrq triggered crash"
    assert gone in done.stdout
    assert "  message: 'the trace did not come to its end'" in done.stdout


@pytest.mark.slow
def test_the_example_for_pytest() -> None:
    plugin = ["-p", "no:cacheprovider", "-n0"]
    words = [sys.executable, "-m", "pytest", *plugin, "--kinst=--cpus 1", "examples/test_reads.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done
