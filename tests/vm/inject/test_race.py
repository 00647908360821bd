"""Delays at the instructions of a function that checks a pointer and then uses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.command import kinst
from tests.vm.inject.module_files import built, summary_of

pytestmark = pytest.mark.vm

# The reader runs on CPU 0, which waits.
COMMAND = (
    "taskset 1 sh -c 'echo use >/proc/racy' & reader=$!; echo change >/proc/racy; wait $reader"
)
DELAYS = ("10ms", "20ms", "40ms", "80ms", "160ms")  # one run each
USE = "17"  # offset of the instruction that reads the pointer again (objdump)


@pytest.fixture(scope="module")
def module(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("racy", prepared, tmp_path_factory.mktemp("racy"))


@pytest.mark.slow
def test_a_delay_between_check_and_use_finds_the_race(module: Path, tmp_path: Path) -> None:
    """At least one of five runs of the command, each with a delay, dereferences NULL."""
    summary = summary_of(
        tmp_path, "race", "racy:use_shared", "--at", USE,
        "--delays", ",".join(DELAYS), "--module", str(module), "-c", COMMAND, status=1,
    )  # fmt: skip
    fault = summary["faults"][0]
    assert fault["outcome"] == "oops" and "NULL pointer dereference" in fault["title"]
    assert fault["stack"][0] == f"use_shared+{int(USE):#x}"


@pytest.mark.slow
def test_without_a_delay_it_is_not_found(module: Path) -> None:
    """In ten times as many runs, in a guest like that of `kinst race`, nothing is dereferenced that
    is not there; kinst plants nothing."""
    command = f"for k in $(seq {10 * len(DELAYS)}); do {COMMAND}; done; dmesg; echo $k runs"
    done = kinst("--cpus", "2", "--module", str(module), "-n", "BEGIN", "-c", command).good()
    assert f"{10 * len(DELAYS)} runs" in done.guest
    assert not re.search("BUG: |Oops|NULL pointer", done.guest + done.err), done
