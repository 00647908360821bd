"""Planting and unplanting at random under load, for a quarter of an hour (soak.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vm, pytest.mark.slow]
MINUTES = 15


def test_nothing_grows_and_the_text_stays() -> None:
    script = Path(__file__).with_name("soak.py")
    done = subprocess.run(
        [sys.executable, str(script), str(MINUTES)], capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    print(done.stdout)
