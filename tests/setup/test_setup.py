"""setup/setup.sh: steps that are done are skipped.  test_fresh_root.py runs the whole of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import ROOT


def function(name: str) -> str:
    """Return the text of a function of the script."""
    text = (ROOT / "setup/setup.sh").read_text()
    start = text.index(f"\n{name}() {{\n")
    return text[start : text.index("\n}\n", start) + 3]


@pytest.mark.parametrize(
    ("written", "key", "skipped"),
    [
        (None, "", False),  # a new machine: there is neither a kernel nor the file
        ("", "", False),
        (None, "vmlinuz 1 2 3", False),
        ("vmlinuz 1 2 3", "", False),  # the kernel was deleted
        ("vmlinuz 1 2 3", "vmlinuz 1 2 4", False),
        ("vmlinuz 1 2 3", "vmlinuz 1 2 3", True),
    ],
)
def test_a_step_is_skipped_only_if_its_files_are_there_and_unchanged(
    written: str | None, key: str, skipped: bool, tmp_path: Path
) -> None:
    stamp = tmp_path / "stamp"
    if written is not None:
        stamp.write_text(written + "\n")
    script = f'set -euo pipefail\n{function("is_unchanged")}\nis_unchanged "$1" "$2"'
    done = subprocess.run(["bash", "-c", script, "setup", stamp, key], check=False)
    assert (done.returncode == 0) == skipped
