"""Each word of D has a program that checks its output (tests/d)."""

from __future__ import annotations

import re

import pytest

from kinst.codegen.subroutines import prototypes
from kinst.dlang.vocabulary.builtins import ACTIONS, AGGREGATING, ARRAYS, VARIABLES
from kinst.dlang.vocabulary.d_options import COMPILE_TIME, DYNAMIC
from tests.d.cases import all_cases

# Words that need a traced kernel or process: tests/codegen and tests/vm test them.
ELSEWHERE = {"arg6", "arg7", "arg8", "arg9", "d_path", "path_in_mount", "ustackdepth"}
# Words without effect in kinst: tests/dlang/vocabulary/test_d_options.py tests them.
ELSEWHERE |= {"aggpercpu"}
WORDS = {*ACTIONS, *AGGREGATING, *ARRAYS, *VARIABLES, *prototypes(), *COMPILE_TIME, *DYNAMIC}


@pytest.fixture(scope="module")
def used() -> set[str]:
    text = "\n".join(f"{case.program} {' '.join(case.args)}" for case in all_cases())
    return set(re.findall(r"\w+", text))


@pytest.mark.parametrize("word", sorted(WORDS - ELSEWHERE))
def test_a_program_of_the_suite_has(word: str, used: set[str]) -> None:
    assert word in used
