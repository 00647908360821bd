"""--live where it is impossible: one line gives the reason and the remedy, and nothing is planted.

live_refusals.py runs the cases, in guests that have this machine's files.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from kinst.machines.live.set_up import SOURCES
from tests.vm.command import KINST
from tests.vm.live.live_guest_run import run_in_guest
from tools.kernel_headers import module_for

pytestmark = [pytest.mark.vm, pytest.mark.slow]
SCRIPT = "-m tests.vm.live.live_refusals"
# Without files that earlier guests have kept.
LINE = (
    "{boot} export XDG_CACHE_HOME={folder}/own;"
    " {python} {script} {kinst} {modules} {cases} >{folder}/out 2>{folder}/err"
)
PLAIN = {
    "another_user": r"--live is for root.*sudo kinst",
    "no_headers": r"headers of kernel \S+ are not installed.*linux-headers-",
    "another_version": r"another version of kinst's: 99, not \d.*rmmod kinst",
    "a_kernel_without_a_symbol": r"this kernel lacks what it needs.*dmesg",
    "opened_by_somebody": r"python\S* \(process \d+\) has /dev/kinst open.*end that one",
    "another_device": r"/dev/kinst is not the device of kinst's module",
    "a_second_kinst": r"kinst \(process \d+\) has /dev/kinst open.*end that one",
}
WITHOUT_DWARF = {
    "an_inline_function": r"no debug information",
    "an_inline_entry": r"no debug information",
    "a_local_variable": r"no debug information about local variables",
    "a_source_line": r"no debug information",
}
BOOTED_WITH = {
    "lockdown=integrity": r"the kernel is locked down \(integrity\)",
    "module.sig_enforce=1": r"it takes signed modules only.*DKMS",
}
# At the first start on a kernel.
PROGRESS = ("kinst: unpacking the kernel's boot image", "kinst: reading the kernel's symbols")
# The boot image is where its package would have put it.
BOOT = "ln -s {image} /boot/vmlinuz-$(uname -r);"


@pytest.fixture(scope="module")
def modules(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three modules of kinst: a good one, one of another version, and one for a kernel that
    has more than this."""
    folder = tmp_path_factory.mktemp("modules")
    release = prepared.debug.name.removeprefix("vmlinux-")
    changes = {
        "kinst": ("", "", ""),
        "version": ("kinst.h", r"(#define KINST_VERSION) \d+", r"\1 99"),
        "symbol": ("kernel.c", r'"text_mutex"', '"no_mutex_of_text"'),
    }
    for name, (file, old, new) in changes.items():
        sources = folder / f"{name}-sources"
        shutil.copytree(SOURCES, sources)
        if file:
            text, count = re.subn(old, new, (sources / file).read_text())
            assert count == 1
            (sources / file).write_text(text)
        (made,) = module_for("amd64", release, sources, folder / f"{name}-built")
        shutil.copyfile(made, folder / f"{name}.ko")
    return folder


def said(prepared: Prepared, modules: Path, folder: Path, cases: list[str], *words: str) -> list:
    line = LINE.format(
        boot=BOOT.format(image=prepared.kernel), python=sys.executable, script=SCRIPT, kinst=KINST,
        modules=modules, cases=" ".join(cases), folder=folder,
    )  # fmt: skip
    done = run_in_guest(prepared.release, folder, line, *words)
    print(done, (folder / "err").read_text())
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def judge(found: list, wanted: dict[str, str]) -> None:
    assert [name for name, *_ in found] == list(wanted)
    for name, status, lines, same in found:
        print(name, status, *lines, sep="\n")
        assert status == 1, (name, status, lines)
        assert re.search(wanted[name], " ".join(lines)), (name, lines)
        told = [line for line in lines if line not in PROGRESS]
        # With the place in a program that does not compile: its line, and a mark under it.
        assert len(told) == (3 if "failed to compile" in told[0] else 1), (name, lines)
        assert told[0].startswith("kinst: "), (name, lines)
        assert same, name


def test_where_it_cannot_be_had(prepared: Prepared, modules: Path, tmp_path: Path) -> None:
    judge(said(prepared, modules, tmp_path, list(PLAIN)), PLAIN)


def test_what_wants_debug_information(prepared: Prepared, modules: Path, tmp_path: Path) -> None:
    judge(said(prepared, modules, tmp_path, list(WITHOUT_DWARF)), WITHOUT_DWARF)


@pytest.mark.parametrize("option", BOOTED_WITH)
def test_booted_with(prepared: Prepared, modules: Path, tmp_path: Path, option: str) -> None:
    case = "the_kernel_is_as_it_is"
    found = said(prepared, modules, tmp_path, [case], "--append", option)
    judge(found, {case: BOOTED_WITH[option]})
