"""Twenty of Debian's programs, drawn at random, with every instruction of each planted: output,
exit status and files are as without kinst."""

from __future__ import annotations

import os
import random

import pytest

from tests.machines.process.debian import LARGE, Runner, difference, installed
from tests.machines.process.stepped import needs_programs

pytestmark = [needs_programs, pytest.mark.slow]
SEED, DRAWN = 37, 20
# Share of its instructions that a program may lose at most because only a trap could plant them.
FEW = 0.08


def drawn() -> list[str]:
    """Return the programs of this run: the same each time, or new ones in make test-release."""
    draw = random.Random(None if os.environ.get("KINST_RANDOM") else SEED)
    names = sorted({*installed()} - {*LARGE})
    return sorted(draw.sample(names, min(DRAWN, len(names))))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("programs") / "all")


@pytest.mark.parametrize("name", drawn())
def test_a_program_of_debian_runs_as_untraced(name: str, runner: Runner) -> None:
    plain, _ = runner.untraced(name)
    found, measured = runner.counted(name)
    assert found == plain, difference(plain, found)
    assert measured.sites > 100 and measured.hits > 1000
    left = sum(measured.left_out.values())
    assert left <= FEW * (measured.sites + left), measured.left_out
