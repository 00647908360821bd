"""Fixtures of the end-to-end tests.

One guest, booted once for all tests, shows which function read(2) of /dev/zero reaches, and how
the instructions on its path are planted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
from tests.tiers import ISAS
from tests.vm.command import Row, counts, kinst, list_functions
from tests.vm.isa_guest import Guest

READ_PATH = ("ksys_read", "vfs_read", "rw_verify_area", "__fdget_pos", "__fget_light")


@pytest.fixture(scope="session")
def reads(prepared: Prepared, guest_program: Callable[[str], Path]) -> Path:
    """Return the program that calls read(2) on /dev/zero exactly N times."""
    return guest_program("reads")


@pytest.fixture(scope="session")
def read_function(reads: Path) -> str:
    """Return which of the driver's two read functions this kernel calls for read(2).

    The guest shows which: the program makes 7 reads, and one of the functions is entered 7 times.
    """
    program = "kinst::read_zero:0, kinst::read_iter_zero:0 { @[probefunc] = count(); }"
    found = counts(kinst("-q", "-n", program, "-c", "reads 7", copy=[reads]).good().out)
    (name,) = (key[0] for key, count in found.items() if count == 7)
    return name


@pytest.fixture(scope="session")
def read_path(read_function: str) -> dict[str, list[Row]]:
    """Return the instructions of the functions that a read(2) of /dev/zero executes."""
    return list_functions(read_function, *READ_PATH)


@pytest.fixture(scope="module", params=ISAS)
def guest(request: pytest.FixtureRequest, program_for: Callable[[str, str], Path]) -> Guest:
    """Return a guest of each instruction set."""
    kernel = prepared_kernel(request.param)
    if kernel is None:
        pytest.fail(f"no {request.param} kernel is there: run `make setup-all`")
    return Guest(request.param, kernel, program_for)
