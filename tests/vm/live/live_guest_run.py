"""A guest with this machine's files, in which kinst runs by --live (tools/live_guest.py)."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests import ROOT
from tests.vm.command import Result, kinst
from tools.live_guest import PROCESSOR, set_up


def run_in_guest(
    release: str, folder: Path, line: str, *words: str, build: Path | None = None
) -> Result:
    """Run a line of shell in the guest.

    Args:
        release: of its kernel.
        folder: a shared folder, whose new files remain.
        words: more of kinst's command line.
        build: as of set_up().
    """
    if platform.machine() != "x86_64":
        pytest.skip("the module is for amd64")
    lines, cache = set_up(release, build)
    (folder / "prepare").write_text(f"{lines}cd {ROOT}\n{line}\n")
    return kinst(
        "--root", "/", "--rw", str(folder), "--rw", str(cache), "--memory", "3g", *words,
        "--qemu-arg", "-cpu", "--qemu-arg", PROCESSOR,
        "-qn", "tick-9999s { }", "-c", f"sh {folder}/prepare",
        seconds=7200.0,
    )  # fmt: skip
