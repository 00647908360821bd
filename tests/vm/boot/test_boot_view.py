"""kinst boot: the same parts as its program's records, in the table and in the picture."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.vm.command import KINST

pytestmark = [pytest.mark.vm, pytest.mark.slow]


def test_a_boot_as_a_picture(tmp_path: Path) -> None:
    """Early steps, init code and the last step before the first program have bars, in order."""
    picture = tmp_path / "boot.svg"
    words = ["boot", "-q", "-o", str(picture), "--least", "0"]
    subprocess.run([KINST, *words], check=True, capture_output=True)
    svg = picture.read_text()
    names = re.findall(r"<title>(\w[\w.]*): [^,<]+, from [^,<]+ on, thread \d+</title>", svg)
    assert len(names) > 300 and f"{len(names)} calls in" in svg
    order = ["setup_arch", "console_init", "smp_init", "populate_rootfs", "free_initmem"]
    assert sorted(order, key=names.index) == order


def test_coverage_of_a_boot(tmp_path: Path) -> None:
    """start_kernel() and rest_init() are called once, and without a command panic() is not."""
    info = tmp_path / "boot.info"
    words = ["cover", "--boot", "-q", "start_kernel", "rest_init", "panic", "-o", str(info)]
    subprocess.run([KINST, *words], check=True, capture_output=True)
    calls = set(re.findall(r"^FNDA:(\d+),(\w+)$", info.read_text(), re.M))
    assert calls == {("1", "start_kernel"), ("1", "rest_init"), ("0", "panic")}


def test_instructions_of_a_boot(tmp_path: Path) -> None:
    """A function without loops, which runs once."""
    page = tmp_path / "rest.txt"
    words = ["annotate", "--boot", "rest_init", "-o", str(page)]
    subprocess.run([KINST, *words], check=True, capture_output=True)
    shown = page.read_text()
    assert re.search(r"^rest_init +init/main\.c:\d+ +entered once, \d+ instructions ran", shown)
