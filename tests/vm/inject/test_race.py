"""Delays at the instructions of a function that checks a pointer and then uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.inject.module_files import built, summary_of

pytestmark = [pytest.mark.vm, pytest.mark.slow]

COMMAND = (
    "(for n in 1 2 3; do echo use >/proc/racy; done) &"
    " for n in 1 2 3 4 5 6; do echo change >/proc/racy; done; wait $!"
)
RUNS = 8  # within so many runs of the command the race is found


@pytest.fixture(scope="module")
def module(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("racy", prepared, tmp_path_factory.mktemp("racy"))


def test_a_delay_between_check_and_use_finds_the_race(module: Path, tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path, "race", "racy:use_shared", "--delays", "1ms", "--module", str(module),
        "-c", COMMAND, status=1,
    )  # fmt: skip
    assert len(summary["tries"]) <= RUNS
    oopses = [one for one in summary["faults"] if one["outcome"] == "oops"]
    assert oopses and all("NULL pointer dereference" in one["title"] for one in oopses)


def test_without_a_delay_it_is_not_found(module: Path, tmp_path: Path) -> None:
    """Each of the tries waits at the function's first instruction, before the check."""
    summary = summary_of(
        tmp_path, "race", "racy:use_shared", "--at", "5", "--delays", ",".join(["1ns"] * 10 * RUNS),
        "--module", str(module), "-c", COMMAND, status=0,
    )  # fmt: skip
    assert len(summary["tries"]) == 10 * RUNS
