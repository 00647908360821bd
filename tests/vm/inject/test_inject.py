"""Calls that fail in a guest's kernel: faults that a module has, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.command import counts, kinst
from tests.vm.inject.module_files import built, summary_of

pytestmark = pytest.mark.vm

# Which fault of tests/programs/faulty_module shows in which way.
FAULTS = {
    "bad_unchecked": "oops",
    "bad_leak": "leak",
    "bad_double_free": "oops",
    "bad_unlock": "hang",
    "bad_errno": "errno",
}
GOOD = (
    "checked", "unwound", "locked", "fallback", "again", "optional", "list", "pointer", "array",
    "copy",
)  # fmt: skip
# Its allocation has the flag __GFP_NOFAIL.
DEMANDED = "good_demanded"
PATHS = [*FAULTS, *(f"good_{name}" for name in GOOD), DEMANDED]
COMMAND = (
    f"status=0; for path in {' '.join(PATHS)};"
    " do echo $path >/proc/faulty || status=1; done; exit $status"
)


@pytest.fixture(scope="module")
def module(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("faulty", prepared, tmp_path_factory.mktemp("faulty"))


def path_of(stack: list[str]) -> str:
    """Return the module's path in which a call failed."""
    names = [frame.partition("+")[0] for frame in stack]
    return next(name for name in names if name in PATHS)


@pytest.mark.slow
def test_the_faults_of_a_module_and_no_others(module: Path, tmp_path: Path) -> None:
    """The module's source says which paths have a fault."""
    summary = summary_of(
        tmp_path, "inject", "*kmalloc* return NULL", "--in", "bad_*,good_*",
        "--module", str(module), "-c", COMMAND, status=1,
    )  # fmt: skip
    found = {path_of(one["stack"]): one["outcome"] for one in summary["faults"]}
    assert found == FAULTS, summary["faults"]
    assert len(summary["faults"]) == len(FAULTS)
    assert all(one["again"] == one["outcome"] for one in summary["faults"])
    tried = {path_of(one["stack"]) for one in summary["tries"] if one.get("stack")}
    assert tried == set(PATHS) - {DEMANDED}
    assert summary["left_out"].startswith("left out: 1 call from 1 stack, which must not fail")
    assert [one["number"] for one in summary["tries"]] == list(range(1, len(summary["tries"]) + 1))
    by_path = {path_of(one["stack"]): one for one in summary["tries"] if one.get("stack")}
    # These paths do without the memory; the others fail, and their error is the right one.
    assert {name for name, one in by_path.items() if one["outcome"] == "survived"} == {
        "good_fallback", "good_again", "good_optional",
    }  # fmt: skip
    assert by_path["good_checked"]["returned"] == "good_checked: ENOMEM"


def test_each_call_is_tried(module: Path, tmp_path: Path) -> None:
    """The number of tries is the number of calls that a trace without failures counts. The
    command's output does not end its last line."""
    command = "echo good_unwound >/proc/faulty; status=$?; printf x; exit $status"
    functions = "fbt::*kmalloc*:entry"
    counted = kinst(
        "-q", "--module", str(module), "-c", "echo good_unwound >/proc/faulty",
        "-n", "fbt::good_unwound:entry { self->in = 1; }",
        "-n", f"{functions} /self->in/ {{ @[probefunc] = count(); }}",
        "-n", "fbt::good_unwound:return { self->in = 0; }",
    ).good()  # fmt: skip
    calls = sum(counts(counted.out).values())
    assert calls >= 3
    summary = summary_of(
        tmp_path, "inject", "*kmalloc*", "--in", "faulty:good_unwound", "--module", str(module),
        "-c", command, status=0,
    )  # fmt: skip
    assert summary["counts"] == {"failed": calls}
