"""docs/api.md is a program: its blocks run in order, on real kernels."""

from __future__ import annotations

import ast
import gc
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinst
from kinst.events import Record
from tests import ROOT
from tests.vm.stub_guest import stub_guest

PAGE = (ROOT / "docs" / "api.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def stub(
    prepared: object, guest_program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("stub")
    with stub_guest("amd64", prepared, guest_program("reads"), folder, "unix") as guest:  # type: ignore[arg-type]
        assert guest.goes_on()
        yield guest.address


def test_the_page_runs(stub: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run every block of the page; each sees the names of the blocks before it.

    Afterwards the state of the process is as before: signal handlers, the exception hook,
    thresholds of the garbage collector, the working folder.
    """
    numbers = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]

    def state() -> object:
        handlers = [signal.getsignal(n) for n in numbers]
        return handlers, sys.excepthook, threading.excepthook, gc.get_threshold(), Path.cwd()

    before = state()
    names: dict[str, object] = {"stub": stub, "vmlinux": str(kinst.kernel_files().debug)}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/api.md, block {number}", "exec"), names)
    assert len(BLOCKS) >= 12
    assert state() == before
    assert "cuont" in capsys.readouterr().out  # the message of the single error


def test_the_page_s_other_blocks_are_python() -> None:
    for block in re.findall(r"^```python notest\n(.*?)^```$", PAGE, re.M | re.S):
        ast.parse(block)


def test_traces_one_after_another_are_exact() -> None:
    """Trace an open machine several times; an exception in the middle of a trace leaves it usable.

    bench/start.py measures how soon such a trace has its first record.
    """
    program = "kinst::vfs_read:0 { trace(timestamp); @ = count(); }"
    endless = "while true; do dd if=/dev/zero of=/dev/null count=10; done"
    stopped = 0
    with kinst.boot() as machine:
        for _ in range(4):
            try:
                with machine.trace(program, command=endless) as trace:
                    for event in trace:
                        if isinstance(event, Record):
                            raise ZeroDivisionError
            except ZeroDivisionError:
                stopped += 1
        reads = [machine.run(program, command="head -c 1 /dev/zero >/dev/null") for _ in range(3)]
        assert len({len(result.records) for result in reads}) == 1
        for result in reads:
            assert result.aggregations[""][()] == len(result.records)
            assert not result.lost
        left = machine.execute("ps").output.decode()
        assert "dd if=" not in left and "while true" not in left
    assert stopped == 4


def test_two_machines_in_two_threads() -> None:
    found: dict[str, object] = {}

    def trace(isa: str) -> None:
        program = f'kinst::vfs_read:0 {{ @["{isa}"] = count(); }}'
        with kinst.boot(isa) as machine:
            runs = [machine.run(program, command="wc -l /etc/passwd") for _ in range(2)]
            found[isa] = [list(run.aggregations[""]) for run in runs]

    threads = [threading.Thread(target=trace, args=(isa,)) for isa in ("amd64", "arm64")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"amd64": [[("amd64",)]] * 2, "arm64": [[("arm64",)]] * 2}
