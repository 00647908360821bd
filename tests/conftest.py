"""Fixtures that tests share: the fetched kernel, and programs to run in the guest."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
from tests import ROOT
from tests.cpu_times import CpuTimes
from tests.tiers import EVERYTHING
from tools.newer_qemu import newer_qemu as fetch_newer_qemu

_PROGRAMS = Path(__file__).with_name("programs")
_FLAGS = ("-O2", "-static", "-Wall", "-Wextra", "-Werror")
_COMPILERS = {
    "amd64": "gcc",
    "arm64": "aarch64-linux-gnu-gcc",
    "riscv64": "riscv64-linux-gnu-gcc",
}

_found = prepared_kernel("amd64")
if _found:
    # Tests that need a kernel's text, but no running kernel, find the kernel's file by this
    # variable.
    os.environ.setdefault("KINST_TEST_VMLINUX", str(_found.debug))


# make test draws the same examples each time and has no deadlines, so that only the change itself
# can fail a test, not chance or a busy machine.  make test-release draws new examples.
settings.register_profile(
    "kinst",
    deadline=None,
    derandomize=not os.environ.get("KINST_RANDOM"),
    max_examples=100 if EVERYTHING else 25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kinst")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vm: boots a real kernel in QEMU")
    config.addinivalue_line("markers", "main_job: boots one, and make test runs it")
    config.addinivalue_line("markers", "full: make test-all runs it, make test does not")
    config.addinivalue_line("markers", "drawn: draws examples, more of them in make test-all")
    config.addinivalue_line("markers", "slow: minutes long; make test-release alone runs it")
    if times := os.environ.get("KINST_TEST_TIMES"):
        config.pluginmanager.register(CpuTimes(Path(times)))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests whose examples hypothesis draws, and tests of tests/vm, before -m selects."""
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "vm"):
            item.add_marker(pytest.mark.vm)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.drawn)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt the modules and the tests themselves from garbage collection: they all stay, and
    looking through them again and again took 7 % of the CPU time."""
    gc.collect()
    gc.freeze()


class FailuresAtOnce:
    """Print each failure immediately: a run that is cut short prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid}: {report.when} failed\n{report.longrepr}")


@pytest.fixture(scope="session")
def prepared() -> Prepared:
    """Return the kernel that make setup fetched."""
    if _found is None:
        pytest.fail("no kernel is there to test with: run `make setup`")
    return _found


@pytest.fixture(scope="session")
def guest_program() -> Callable[[str], Path]:
    """Return a function that compiles tests/programs/NAME.c for the guest, statically linked."""
    return _compiled


@pytest.fixture(scope="session")
def program_for() -> Callable[[str, str], Path]:
    """Return a function that compiles a program for a guest of any ISA: (name, isa) -> program."""
    return _compiled


@pytest.fixture
def newer_qemu(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the folder with Debian 13's QEMU 10 first in PATH while the test runs, and return it."""
    try:
        folder = fetch_newer_qemu()
    except KinstError as error:
        pytest.fail(f"no newer QEMU is there: {error}; run `make setup-all`")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def _compiled(name: str, isa: str = "amd64") -> Path:
    compile_ = (_COMPILERS[isa], *_FLAGS)
    source = _PROGRAMS / f"{name}.c"
    key = hashlib.sha256(" ".join(compile_).encode() + source.read_bytes()).hexdigest()[:16]
    # Keep the program's own name: the guest shows it as execname.
    program = cache_folder() / "programs" / key / name
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as work:
            made = Path(work) / name
            command = [*compile_, "-o", str(made), str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.fail(f"{source} does not compile:\n{done.stderr}")
            made.rename(program)
    return program
