"""pytest's fixture `vm`: a machine that is open for the whole test session (docs/testing.md).

pytest imports this module through its entry point in every session, so the module imports nothing
of kinst until a test asks for the fixture.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kinst.api import Machine

_HELP = "options of the kinst command that say which machine the fixture vm is: '--kernel 6.12'"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kinst", "kernels to be traced")
    group.addoption("--kinst", action="append", default=[], metavar="OPTIONS", help=_HELP)
    parser.addini("kinst", f"{_HELP}; those of --kinst follow", default="")


def _options(words: list[str]) -> Any:
    """Return the request for words of kinst's command line. Raises KinstError."""
    hook = sys.excepthook  # pytest needs it, and importing the command replaces it
    try:
        return import_module("kinst.cli.options").parse(words).request
    finally:
        sys.excepthook = hook


@pytest.fixture(scope="session")
def vm(pytestconfig: pytest.Config) -> Iterator[Machine]:
    """A kinst.Machine, which is booted or attached to when the first test asks for it, and closed
    at the end of the session.

    The options --kinst, and kinst in pytest's configuration file, choose the machine.
    """
    api, errors = import_module("kinst.api"), import_module("kinst.errors")
    given = [pytestconfig.getini("kinst"), *pytestconfig.getoption("--kinst")]
    try:
        request = _options([word for text in given for word in shlex.split(text)])
        if request.programs or request.runs_command or request.arguments:
            raise errors.KinstError(
                "--kinst says which machine, not what is traced", "such as --kernel 6.12"
            )
        machine = api.Machine(request)
        try:
            machine.start()
        except BaseException:
            machine.close()
            raise
    except errors.KinstError as error:
        pytest.fail(f"kinst: {error}", pytrace=False)
    with machine:
        yield machine
