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
