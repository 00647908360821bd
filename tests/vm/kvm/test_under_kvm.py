"""kinst under KVM: exact counts in guests that kinst boots, and in guests that plain QEMU runs.

This host need have no KVM.  kinst boots a guest whose emulated processor has SVM, AMD's
virtualization; in it kinst runs once more, with a /dev/kvm, and traces guests of its own.  Nothing
was tried on a real processor.  TCG's SVM does not intercept int3 (QEMU 7.2 and 10.0,
target/i386/tcg: raise_interrupt2), so breakpoints that QEMU's stub writes into code are not tried.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kinst.kernels.fetch import Prepared
from tests import ROOT
from tests.vm.command import kinst
from tools.kernel_headers import module_for

pytestmark = [
    pytest.mark.vm, pytest.mark.full,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the guest's kinst is this host's"),
]  # fmt: skip
# A processor with SVM on which a guest is fastest; "max" has more features, and takes longer.
PROCESSOR = "EPYC,+svm,+npt"
SOURCES = Path(__file__).with_name("rig_module")
SECONDS = 3600.0
LEAST_SITES = 40  # of vfs_read, that a read of /dev/zero executes: it has no loop


@pytest.fixture(scope="module")
def module(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rig")
    (made,) = module_for("amd64", prepared.release, SOURCES, folder)
    return made


@pytest.fixture
def inside(module: Path, reads: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that makes checks of kvm_in_guest.py, and returns their results."""

    def make(*checks: str) -> dict[str, Any]:
        out = tmp_path / "out"
        words = " ".join(f"'{word}'" for word in (module, reads, *checks))
        environment = f"PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1 PATH={os.environ['PATH']}"
        for name in ("KINST_TEST_KILLS", "KINST_TEST_SEED"):
            environment += f" {name}={os.environ[name]}" if name in os.environ else ""
        script = f"exec {sys.executable} -m tests.vm.kvm.kvm_in_guest {words} >{out} 2>&1"
        (tmp_path / "run").write_text(f"cd {ROOT}\nexport {environment}\n{script}\n")
        done = kinst(
            "--root", "/", "--rw", str(tmp_path), "--memory", "3g", "--module", "kvm_amd",
            "--accel", "tcg", "--append", "mitigations=off",
            "--qemu-arg", "-cpu", "--qemu-arg", PROCESSOR,
            "-qn", "END { }", "-c", f"sh {tmp_path}/run", seconds=SECONDS,
        )  # fmt: skip
        said = out.read_text() if out.exists() else ""
        print(done, said, f"load {os.getloadavg()}", sep="\n")
        lines = [line for line in said.splitlines() if line.startswith("[")]
        found = {name: result for name, result, _ in map(json.loads, lines)}
        assert set(found) == set(checks), said
        return found

    return make


def check_counts(counts: dict[str, tuple[int, Sequence[tuple[str, int]], int]]) -> None:
    """Check that each instruction that runs was counted once in each read, by every way.

    Each read(2) of the program executes the same instructions of vfs_read once.
    """
    for way, (reads, rows, lost) in counts.items():
        assert {count for _, count in rows} == {reads}, (way, rows)
        assert len(rows) > LEAST_SITES or way in ("jump", "stop"), (way, rows)
        assert not lost, way
    of_ways = {way: {name for name, _ in rows} for way, (_, rows, _) in counts.items()}
    assert of_ways["auto"] == of_ways["trap"] == of_ways.get("warm", of_ways["auto"])
    assert of_ways["jump"] < of_ways["auto"]  # no jump fits over a short instruction
    assert of_ways["stop"] == {"0"}


def check_attached(found: dict[str, Any]) -> None:
    check_counts(found["counts"])
    assert "reads 10 ns" in found["runs on"], found["said"]


def test_counts_are_exact(inside: Callable[..., dict[str, Any]]) -> None:
    found = inside("boot", "attach")
    assert "KVM: no guest has been started under KVM" in found["boot"]["before"]
    assert "KVM: a guest has come up" in found["boot"]["after"]
    assert not found["boot"]["told"]
    check_counts(found["boot"]["counts"])
    boots = [text.splitlines() for text in found["boot"]["boots"]]
    assert boots[0][0] == boots[1][0] and "Run /init" in boots[0][0]  # one boot
    assert all(abs(int(guest) - int(host)) < 60 for _, guest, host in boots)
    check_attached(found["attach"])


@pytest.mark.slow
def test_killed_at_any_moment(inside: Callable[..., dict[str, Any]]) -> None:
    found = inside("killed")["killed"]
    assert found["good"] == found["of"] > 1, found


@pytest.mark.slow
def test_timers_and_limits(inside: Callable[..., dict[str, Any]]) -> None:
    """An emulated processor is late at times, but nothing comes too often, or does not end."""
    found = inside("timers")["timers"]
    assert found["reason"] == "interrupted"
    assert 1 <= found["tick"] <= found["took"] + 1
    assert len(found["profile"]) == 2
    assert all(1 < count < 97 * found["took"] + 2 for count in found["profile"].values())
    assert found["limited"] < 60


@pytest.mark.slow
def test_folders_batches_and_four_cpus(inside: Callable[..., dict[str, Any]]) -> None:
    found = inside("folders")["folders"]
    assert found["cpus"] == 4
    assert {count for _, count in found["rows"]} == {2000} and len(found["rows"]) > LEAST_SITES


@pytest.mark.slow
@pytest.mark.parametrize("check", ["attach to two CPUs", "attach with PTI"])
def test_attached_to_other_guests(inside: Callable[..., dict[str, Any]], check: str) -> None:
    check_attached(inside(check)[check])
