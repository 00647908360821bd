"""tools/newer_qemu.py: Debian 13's QEMU next to Debian 12's, and how its programs are started."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.newer_qemu import PROGRAMS, _give_loader

MACHINES = {"qemu-system-x86_64": "q35"}
ASKED = '{"execute": "qmp_capabilities"}\n{"execute": "query-version"}\n{"execute": "quit"}\n'


def test_a_program_starts_with_another_loader_and_keeps_its_name(tmp_path: Path) -> None:
    program = tmp_path / "shown"
    shutil.copy("/bin/readlink", program)
    loader = tmp_path / "loader"

    def copied(usual: str) -> str:
        shutil.copy(usual, loader)
        return str(loader)

    assert _give_loader(program, copied) == str(loader)
    shown = subprocess.run([program, "/proc/self/exe"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == str(program)
    loader.unlink()
    with pytest.raises(FileNotFoundError):
        subprocess.run([program, "/proc/self/exe"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_is_version_10_and_starts_a_machine(newer_qemu: Path, program: str) -> None:
    machine = ["-machine", MACHINES.get(program, "virt"), "-accel", "tcg", "-cpu", "max", "-S"]
    command = [newer_qemu / program, *machine, "-nodefaults", "-display", "none", "-qmp", "stdio"]
    done = subprocess.run(command, input=ASKED, capture_output=True, text=True, timeout=60)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    (version,) = (a["return"]["qemu"] for a in answers if "qemu" in a.get("return", {}))
    assert done.returncode == 0 and version["major"] >= 10
