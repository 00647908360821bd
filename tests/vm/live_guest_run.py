"""A guest with this machine's files, in which kinst runs by --live (tools/live_guest.py)."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from command import Result, kinst

from kinst.kernels.fetch import Prepared
from tools.kernel_headers import headers_of
from tools.live_guest import PROCESSOR, SET_UP


def run_in_guest(prepared: Prepared, folder: Path, line: str, *words: str) -> Result:
    """Run a line of shell in the guest.  folder: what is written there stays.  words: more of
    kinst's command line."""
    if platform.machine() != "x86_64":
        pytest.skip("the module is for amd64")
    release = prepared.debug.name.removeprefix("vmlinux-")
    set_up = SET_UP.format(headers=headers_of("amd64", release), cache=folder / "cache")
    (folder / "prepare").write_text(f"{set_up}{line}\n")
    return kinst(
        "--root", "/", "--rw", str(folder), "--memory", "3g", *words,
        "--qemu-arg", "-cpu", "--qemu-arg", PROCESSOR,
        "-qn", "tick-9999s { }", "-c", f"sh {folder}/prepare",
        seconds=7200.0,
    )  # fmt: skip
