"""Planting and unplanting at random under load, for a quarter of an hour (soak.py)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = [pytest.mark.vm, pytest.mark.slow]
MINUTES = 15


def test_nothing_grows_and_the_text_stays() -> None:
    command = [sys.executable, "-m", "tests.vm.endings.soak", str(MINUTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    print(done.stdout)
