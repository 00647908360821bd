"""Set-up finds tools that do not work, names Debian's packages, installs them, and keeps the proof.

The scripts run with stand-ins for some commands and without others; test_fresh_root.py runs them
with a real apt.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from tests import ROOT

SCRIPT = """
set -euo pipefail
venv=.venv
cache=$CACHE
say() { printf 'setup: %s\\n' "$*"; }
. setup/tools.sh
. setup/packages.sh
basic_tools='gcc: gcc libc6-dev'
test_tools=$'\\n'$TOOLS
system_packages "${1:-test}"
"""


COMMANDS = (
    *(
        "apt-get",
        "as",
        "bash",
        "cat",
        "chmod",
        "cp",
        "cut",
        "dpkg-query",
        "dwz",
        "gcc",
        "grep",
        "jq",
    ),
    *("ld", "mkdir", "mktemp", "rm", "sed", "sort", "stat", "tail", "timeout", "tr"),
)


class Machine:
    """A machine with some of this one's commands, and with stand-ins for others."""

    def __init__(self, folder: Path) -> None:
        self.commands = folder / "commands"
        self.cache = folder / "cache"
        self.calls = folder / "calls"
        self.commands.mkdir()
        for name in COMMANDS:
            found = shutil.which(name)
            if found:
                (self.commands / name).symlink_to(found)
        self.stand_in("id", "echo 1000")
        self.installed("gcc", "libc6-dev")

    def without(self, *names: str) -> None:
        for name in names:
            (self.commands / name).unlink(missing_ok=True)

    def stand_in(self, name: str, script: str) -> None:
        """Add a command that notes its arguments and then runs the script."""
        self.without(name)
        note = f'echo "{name} $*" >>{self.calls}'
        (self.commands / name).write_text(f"#!/bin/bash\n{note}\n{script}\n")
        (self.commands / name).chmod(0o755)

    def installed(self, *packages: str) -> None:
        names = "|".join(packages)
        self.stand_in("dpkg-query", f"case ${{@: -1}} in {names}) echo -n installed ;; esac")

    def called(self, name: str) -> list[str]:
        """Return the arguments of each call of a stand-in."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]

    def set_up(self, *tools: str, status: int = 0, level: str = "test") -> str:
        done = subprocess.run(
            ["bash", "-c", SCRIPT, "setup", level], cwd=ROOT, capture_output=True, text=True,
            env={"PATH": str(self.commands), "CACHE": str(self.cache), "TOOLS": "\n".join(tools)},
        )  # fmt: skip
        assert done.returncode == status, done
        assert not done.stderr
        return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_works_is_not_mentioned_and_not_tried_again(machine: Machine) -> None:
    machine.stand_in("jq", "echo 42")
    assert machine.set_up("jq: jq") == ""
    assert machine.called("jq") == ["-n 6 * 7"]
    assert machine.set_up("jq: jq") == ""
    assert machine.set_up("jq: jq", level="basic") == ""
    assert len(machine.called("jq")) == 1
    machine.stand_in("jq", "echo 42; echo >&2")  # another file
    assert machine.set_up("jq: jq") == ""
    assert len(machine.called("jq")) == 2


def test_the_proof_of_the_basic_tools_is_none_of_the_others(machine: Machine) -> None:
    machine.without("jq")
    assert machine.set_up("jq: jq", level="basic") == ""
    assert "jq does not work" in machine.set_up("jq: jq", status=1)


def test_a_tool_that_is_not_there(machine: Machine) -> None:
    machine.without("jq")
    assert machine.set_up("jq: jq", status=1) == (
        "setup: jq does not work (it is not there); Debian has it in: jq\n"
        "setup: only root can install packages; run this, then make again:\n"
        "setup:     sudo apt-get install --no-install-recommends --fix-broken jq\n"
    )


def test_without_apt_the_packages_are_named(machine: Machine) -> None:
    machine.without("jq", "apt-get", "dpkg-query")
    assert machine.set_up("jq: jq", status=1) == (
        "setup: jq does not work (it is not there); Debian has it in: jq\n"
        "setup: this machine has no apt; install what Debian calls: jq\n"
    )


def test_a_compiler_without_its_c_library(machine: Machine) -> None:
    error = "/usr/include/features-time64.h:20:10: fatal error: bits/wordsize.h: No such file"
    machine.stand_in("aarch64-linux-gnu-gcc", f"echo '{error}' >&2; exit 1")
    machine.installed("gcc-aarch64-linux-gnu")
    said = machine.set_up(
        "aarch64-linux-gnu-gcc: gcc-aarch64-linux-gnu libc6-dev-arm64-cross", status=1
    )
    assert said.splitlines()[0] == (
        f"setup: aarch64-linux-gnu-gcc does not work ({error}); "
        "Debian has it in: libc6-dev-arm64-cross"
    )


def test_a_dependency_that_is_missing_is_named(machine: Machine) -> None:
    machine.stand_in("qemu-system-riscv64", "echo 'error while loading libfdt.so.1' >&2; exit 127")
    machine.installed("qemu-system-misc")
    machine.stand_in(
        "apt-get",
        "echo ' qemu-system-misc : Depends: libfdt1 (>= 1.6.0) but it is not installed'; exit 100",
    )
    said = machine.set_up("qemu-system-riscv64: qemu-system-misc", status=1).splitlines()
    assert said[0] == (
        "setup: qemu-system-riscv64 does not work (error while loading libfdt.so.1); "
        "Debian has it in: libfdt1"
    )
    assert said[2].endswith("install --no-install-recommends --fix-broken libfdt1")


def test_root_gets_what_is_missing(machine: Machine) -> None:
    machine.stand_in("id", "echo 0")
    machine.without("jq")
    make = (
        f"printf '#!/bin/bash\\necho 42\\n' >{machine.commands}/jq; chmod +x {machine.commands}/jq"
    )
    machine.stand_in("apt-get", f"case $* in *install*) {make} ;; esac")
    said = machine.set_up("jq: jq").splitlines()
    assert said[0] == "setup: installing packages: jq"
    assert said[1].startswith("setup: packages installed (")
    assert machine.called("apt-get") == [
        "-q update",
        "-q install --no-install-recommends --fix-broken --no-remove -y jq",
    ]
    assert machine.set_up("jq: jq") == ""


def test_root_gets_what_is_found_out_when_gcc_works(machine: Machine) -> None:
    machine.stand_in("id", "echo 0")
    machine.without("gcc")
    machine.stand_in("dwz", "exit 1")
    machine.installed("libc6-dev")
    (machine.commands / "there").mkdir()
    for name in ("gcc", "dwz"):
        (machine.commands / "there" / name).symlink_to(str(shutil.which(name)))
    # The last argument is the package.
    get = 'cd "${0%/*}" && cp -P --remove-destination "there/${@: -1}" .'
    machine.stand_in("apt-get", f"case $* in *install*) {get} ;; esac")
    said = machine.set_up("dwz: dwz").splitlines()
    assert said[::2] == ["setup: installing packages: gcc", "setup: installing packages: dwz"]


def test_what_apt_says_when_it_cannot(machine: Machine) -> None:
    machine.stand_in("id", "echo 0")
    machine.without("jq")
    machine.stand_in("apt-get", "echo 'E: Unable to locate package jq'; exit 100")
    assert machine.set_up("jq: jq", status=1) == (
        "setup: installing packages: jq\n"
        "E: Unable to locate package jq\n"
        "setup: apt-get could not install: jq\n"
    )


def test_what_does_not_work_even_when_installed_anew(machine: Machine) -> None:
    machine.stand_in("id", "echo 0")
    machine.stand_in("dwz", "echo 'dwz: cannot allocate'; exit 1")
    machine.stand_in("apt-get", "")
    machine.installed("dwz")
    said = machine.set_up("dwz: dwz", status=1).splitlines()
    assert said[-1] == "setup: dwz does not work (dwz: cannot allocate); Debian has it in: dwz"
    assert "-q install --no-install-recommends --fix-broken --reinstall --no-remove -y dwz" in (
        machine.called("apt-get")
    )


def test_only_the_compiler_is_named_when_it_does_not_work(machine: Machine) -> None:
    machine.stand_in("gcc", "echo 'sample.c:1: fatal error: stdio.h: No such file'; exit 1")
    machine.installed("gcc")
    said = machine.set_up("dwz: dwz", "jq: jq", status=1).splitlines()
    assert said[0].endswith("No such file); Debian has it in: libc6-dev")
    assert said[-1].endswith("install --no-install-recommends --fix-broken libc6-dev")


def test_where_the_proof_cannot_be_kept_it_is_made_again(machine: Machine) -> None:
    machine.stand_in("jq", "echo 42")
    machine.cache.write_text("a file where the folder would be")
    for _ in range(2):
        assert machine.set_up("jq: jq") == ""
    assert len(machine.called("jq")) == 2


def every_tool() -> Collection[str]:
    script = '. setup/tools.sh; echo "$basic_tools$test_tools$all_tools"'
    shown = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    return [line.partition(":")[0] for line in shown.stdout.splitlines() if line]


@pytest.mark.parametrize("tool", every_tool())
def test_every_tool_is_proved_by_work_of_its_own(tool: str, tmp_path: Path) -> None:
    """prove() has a case for it: without one it would accept anything."""
    script = f". {ROOT}/setup/tools.sh; checkout=/none; venv=none; PATH=/none; prove {tool}"
    done = subprocess.run(["/bin/bash", "-c", script], cwd=tmp_path, capture_output=True)
    assert done.returncode != 0
