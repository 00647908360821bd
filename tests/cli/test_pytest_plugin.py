"""The fixture vm, in a separate session of pytest.  No kernel: the machine is a stand-in."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib

import pytest

from tests import ROOT

pytest_plugins = ["pytester"]

STAND_IN = """
    import pytest
    import kinst.api

    class StandIn:
        made = []
        def __init__(self, request):
            self.request, self.running = request, False
            StandIn.made.append(self)
        def start(self):
            self.running = True
        def close(self):
            self.running = False
        def __enter__(self):
            return self
        def __exit__(self, *error):
            self.close()

    @pytest.fixture(scope="session", autouse=True)
    def stand_in():
        before = kinst.api.Machine
        kinst.api.Machine = StandIn
        yield
        kinst.api.Machine = before
        assert not any(one.running for one in StandIn.made)
"""
TESTS = """
    def test_it_runs(vm):
        assert vm.running
        assert (vm.request.machine.release, vm.request.machine.cpus) == ("6.12", 3)
        assert vm.request.settings == (("bufsize", "1m"),)

    def test_it_is_the_same(vm):
        assert type(vm).made == [vm]
"""


def test_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(STAND_IN)
    pytester.makeini("[pytest]\nkinst = --kernel 6.12 --cpus 2")
    pytester.makepyfile(TESTS)
    plugin = ("-p", "kinst.cli.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:kinst")
    words = (*plugin, "--kinst=--cpus 3", "--kinst=-x bufsize=1m")
    pytester.runpytest_subprocess(*words).assert_outcomes(passed=2)
    wrong = pytester.runpytest_subprocess(*plugin, "--kinst=-n BEGIN")
    wrong.assert_outcomes(errors=2)
    wrong.stdout.fnmatch_lines(["*kinst: --kinst says which machine, not what is traced*"])
    wrong = pytester.runpytest_subprocess(*plugin, "--kinst=--nosuch")
    wrong.stdout.fnmatch_lines(["*kinst: option --nosuch not recognized*"])


def test_it_is_found_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"kinst": "kinst.cli.pytest_plugin"}


def test_it_loads_nothing_before_a_test_asks() -> None:
    code = (
        "import sys, kinst.cli.pytest_plugin\n"
        "assert 'kinst.api' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs/testing.md").read_text()
    shown = page.split("```python notest\n")[1].split("```")[0]
    assert shown in (ROOT / "examples/test_reads.py").read_text()
    ast.parse(shown)
    assert page.split("```d\n")[1].split("```")[0] in (ROOT / "examples/tests/reads.d").read_text()
