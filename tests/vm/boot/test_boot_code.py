"""kinst annotate --boot and kinst cover --boot: how often each instruction runs in a boot, as QEMU
itself counts it in the same boot.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kinst.image.elf import Elf, open_elf
from kinst.kernels.fetch import prepared
from tests.tiers import FIRST
from tests.vm.boot.executions import Executions
from tests.vm.command import KINST
from tests.vm.language.test_lines import addr2line

pytestmark = [pytest.mark.vm, pytest.mark.full, pytest.mark.slow]

# Init functions with loops and branches.
INIT = ("early_irq_init", "setup_per_cpu_areas")
# Functions that the boot, kinst's init and the command run, and nothing after the command.
LATER = ("vfs_create_mount", "vfs_kern_mount")
COMMAND = "mkdir /tmp/m; mount -t tmpfs m /tmp/m; mount -o remount,ro /tmp/m; umount /tmp/m"
ROW = re.compile(r"^ *([\d,]+|-)(?: +[\d.]+%)? +\+(\d+) +(.*)", re.M)
HEAD = re.compile(r"^(\w+)  \S+:\d+  (.*?), executed [\d,]+ instructions in", re.M)


def extents(elf: Elf) -> dict[str, tuple[int, int]]:
    """Return the linked address and the size of each of the functions."""
    symbols = elf.symbols
    places = {}
    for name in (*INIT, *LATER):
        (number,) = symbols.indexes(name)
        places[name] = int(symbols.address[number]), int(symbols.size[number])
    return places


def run(*words: str | Path, plugin: Executions) -> subprocess.CompletedProcess[str]:
    more = [word for one in plugin.arguments for word in ("--qemu-arg", one)]
    return subprocess.run([KINST, *words, *more], check=True, capture_output=True, text=True)


@pytest.fixture
def elf() -> Elf:
    kernel = prepared(FIRST)
    assert kernel is not None
    return open_elf(kernel.debug)


@pytest.fixture
def plugin(elf: Elf, tmp_path: Path) -> Executions:
    """Return a plugin that counts all instructions of the functions."""
    return Executions(tmp_path, (at for low, size in extents(elf).values() for at in
                                 range(low, low + size)))  # fmt: skip


def counted(plugin: Executions, elf: Elf, slide: int) -> dict[str, dict[int, int]]:
    """Return the plugin's counts by function and offset."""
    counts = plugin.read()
    return {
        name: {at: counts[low + at + slide] for at in range(size) if low + at + slide in counts}
        for name, (low, size) in extents(elf).items()
    }


def test_annotated_counts_are_those_of_qemu(tmp_path: Path, elf: Elf, plugin: Executions) -> None:
    """The counts go on when the command starts and the probes become jumps. From then on only the
    entry of a function is executed where QEMU counts it, since its other instructions run in
    trampolines; but all counts add up along the edges of the flow graphs."""
    shown = tmp_path / "shown"
    command = f"grep ' init_task$' /proc/kallsyms; {COMMAND}"
    words = ("annotate", "--boot", *INIT, *LATER, "-o", shown, "-c", command)
    done = run(*words, plugin=plugin)
    slide = int(done.stdout.split()[0], 16) - (elf.address("init_task") or 0)
    theirs = counted(plugin, elf, slide)
    text = shown.read_text()
    assert "does not add up" not in text
    heads = list(HEAD.finditer(text))
    assert [head[1] for head in heads] == [*INIT, *LATER]
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True):
        rows = ROW.findall(text[head.end() : end])
        ours = {int(at): int(n.replace(",", "")) for n, at, _ in rows if n not in "-0"}
        expected = theirs[head[1]]
        assert ours[0] == expected[0], head[1]
        if head[1] in INIT:
            # QEMU counts each repetition of a string instruction.
            repeated = {int(at) for _, at, text in rows if re.search(r"\brep", text)}
            assert ours.keys() == expected.keys() and len(repeated) < 3, head[1]
            assert all(ours[at] == expected[at] for at in ours.keys() - repeated), head[1]
        refused = [at for count, at, _ in rows if count == "-"]
        assert len(refused) < len(rows) / 20
    assert all(head[2] == "entered once" for head in heads[: len(INIT)])
    assert theirs["vfs_create_mount"][0] > 20


def test_covered_lines_are_those_of_qemu(tmp_path: Path, elf: Elf, plugin: Executions) -> None:
    """Lines of init functions that ran in a boot, by QEMU and addr2line."""
    kernel = prepared(FIRST)
    assert kernel is not None
    info = tmp_path / "info"
    done = run("cover", "--boot", "--append", "nokaslr", *INIT, "-o", info, plugin=plugin)
    assert "FUNCTIONS" in done.stdout
    theirs = counted(plugin, elf, 0)
    places = extents(elf)
    lines = addr2line(kernel.debug, [places[name][0] + at for name in INIT for at in theirs[name]])
    assert len(lines) > 100
    sections = info.read_text().split("end_of_record\n")[:-1]
    files = [section.partition("SF:")[2].splitlines()[0].rpartition("/")[2] for section in sections]
    assert {file for file, _ in lines} == {*files}
    for file, section in zip(files, sections, strict=True):
        found = set(re.findall(r"^DA:(\d+),[1-9]", section, re.M))
        assert found == {line for name, line in lines if name == file}, file
    assert "FNDA:1,early_irq_init" in info.read_text()
