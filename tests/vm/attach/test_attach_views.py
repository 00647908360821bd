"""Views of a trace on a virtual machine that kinst did not start.

Each shows exactly how often a program has read, and leaves the kernel's text as it was.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.top_terminal import Terminal, keys_of
from tests.vm.attach.attach_guest import AttachGuest, attach_guest
from tests.vm.attach.attach_picture import Photographer
from tests.vm.command import KINST, SECONDS

pytestmark = pytest.mark.vm
READS = 300
OF_READS = 'execname == "reads"'
STACKS = f"fbt::vfs_read:entry /{OF_READS}/ {{ @[stack()] = count(); }}"
NAMES = f"fbt::vfs_read:entry /{OF_READS}/ {{ @[execname] = count(); }}"


@dataclass(frozen=True)
class Traced:
    """A guest, and its kernel's text before any trace."""

    vm: AttachGuest
    text: Callable[[], bytes]
    before: bytes

    @property
    def options(self) -> list[str]:
        return ["--attach", str(self.vm.pid), "--kernel", str(self.vm.debug), "-q"]

    def reads(self) -> None:
        """Run a program that reads, once the probes are planted."""
        end = time.monotonic() + SECONDS
        while self.text() == self.before:
            assert time.monotonic() < end, "nothing is planted"
            time.sleep(0.02)
        self.vm.run(f"reads {READS}")

    def said(self, *words: str | Path) -> str:
        """Return the output of a view of these reads, ended by Ctrl-C."""
        command = [KINST, *words, *self.options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            self.reads()
            child.send_signal(signal.SIGINT)
            out = child.communicate(timeout=SECONDS)[0]
        assert child.returncode == 0
        assert self.text() == self.before
        return out


@pytest.fixture(scope="module")
def traced(
    prepared: Prepared, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Traced]:
    with attach_guest("pc", prepared, reads, tmp_path_factory.mktemp("views")) as vm:
        photographer = Photographer(vm, "amd64", 512)
        yield Traced(vm, photographer.text, photographer.text())


def test_json(traced: Traced) -> None:
    rows = [json.loads(line) for line in traced.said("--json", "-n", NAMES).splitlines()]
    (table,) = (row for row in rows if row["type"] == "aggregation")
    assert [(row["key"], row["value"]) for row in table["rows"]] == [(["reads"], READS)]


def test_flame(traced: Traced) -> None:
    found = re.findall(r"^(\S+) (\d+)$", traced.said("flame", "-n", STACKS), re.M)
    assert sum(int(count) for _, count in found) == READS
    assert all(stack.endswith(";ksys_read;vfs_read") for stack, _ in found)


def test_annotate(traced: Traced) -> None:
    said = traced.said("annotate", "vfs_read", "--if", OF_READS)
    assert re.match(rf"vfs_read  fs/read_write\.c:\d+  entered {READS}\b", said), said[:300]


def test_cover(traced: Traced, tmp_path: Path) -> None:
    info = tmp_path / "read.info"
    traced.said("cover", "vfs_read", "--if", OF_READS, "-o", info)
    assert f"\nFNDA:{READS},vfs_read\n" in info.read_text()


def test_top(traced: Traced) -> None:
    top = Terminal("--every", "200ms", "-n", NAMES, *traced.options)
    traced.reads()
    top.until(lambda screen: "reads" in keys_of(screen))
    top.type("\x03")
    assert top.status() == 0
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", top.written.split("\x1b[?1049l")[-1])
    assert re.search(rf"^reads +{READS} ", last, re.M), last
    assert traced.text() == traced.before
