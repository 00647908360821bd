"""Delays at the instructions of a function that checks a pointer and then uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.inject.module_files import built, summary_of

pytestmark = pytest.mark.vm

# The reader runs on CPU 0, which waits.
COMMAND = (
    "taskset 1 sh -c 'echo use >/proc/racy' & reader=$!; echo change >/proc/racy; wait $reader"
)
USE = "17"  # offset of the instruction that reads the pointer again (objdump)


@pytest.fixture(scope="module")
def module(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("racy", prepared, tmp_path_factory.mktemp("racy"))


@pytest.mark.slow
def test_a_delay_between_check_and_use_finds_the_race(module: Path, tmp_path: Path) -> None:
    """At least one of five runs of the command with a delay dereferences NULL."""
    summary = summary_of(
        tmp_path, "race", "racy:use_shared", "--at", USE,
        "--delays", "10ms,20ms,40ms,80ms,160ms", "--module", str(module), "-c", COMMAND, status=1,
    )  # fmt: skip
    fault = summary["faults"][0]
    assert fault["outcome"] == "oops" and "NULL pointer dereference" in fault["title"]
    assert fault["stack"][0] == f"use_shared+{int(USE):#x}"


@pytest.mark.slow
def test_without_a_delay_it_is_not_found(module: Path, tmp_path: Path) -> None:
    """Ten runs, whose delay is before the check and much shorter than a change."""
    summary = summary_of(
        tmp_path, "race", "racy:use_shared", "--at", "5", "--delays", ",".join(["1ns"] * 10),
        "--module", str(module), "-c", COMMAND, status=0,
    )  # fmt: skip
    assert summary["counts"] == {"survived": 10}
