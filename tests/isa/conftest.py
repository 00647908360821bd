"""Fixtures: a real kernel's text and its instruction forms; the emulator."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kinst.core.isa import Isa
from kinst.isa import load
from tests.isa.emulated import Machine
from tests.isa.kernel_text import Form, Text, find_vmlinux, kept_forms, read_text

REPORT = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def isa() -> Isa:
    return load("amd64")


@pytest.fixture(scope="session")
def text() -> Text:
    """Return .text of the kernel at $KINST_TEST_VMLINUX, or of the newest in ~/.cache/kinst."""
    return read_text(find_vmlinux())


@pytest.fixture(scope="session")
def kernel_forms(text: Text, isa: Isa) -> list[Form]:
    return kept_forms(text, isa)


@pytest.fixture(scope="session")
def machine(text: Text) -> Machine:
    return Machine(text.address, text.code)


@pytest.fixture(scope="session")
def thorough() -> bool:
    return bool(os.environ.get("KINST_THOROUGH"))


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Iterator[list[str]]:
    """Return a list of lines that are printed after the tests."""
    yield pytestconfig.stash.setdefault(REPORT, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(REPORT, [])
    if lines:
        terminalreporter.section("amd64 instructions of the kernel")
        for line in lines:
            terminalreporter.write_line(line)
