"""Which files are user programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinst import systems
from kinst.image.elf import open_elf


def system_of(path: Path) -> str:
    return systems.of_image(open_elf(path)).name


def test_debian_s_programs_are_programs() -> None:
    assert system_of(Path("/usr/bin/gzip")) == "process"


@pytest.mark.parametrize("options", [("-static",), ("-static-pie",), ("-no-pie",), ("-s",)])
def test_programs_of_all_kinds(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text("int main(void) { return 0; }\n")
    command = ["gcc", *options, "-o", "program", "program.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert system_of(tmp_path / "program") == "process"
