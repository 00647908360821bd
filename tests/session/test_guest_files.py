"""--copy of files that cannot run in a guest without libraries is refused before it boots."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.isa import load
from kinst.session.guest_files import check_copy, check_root

AMD64 = load("amd64")


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Path]:
    def make(*flags: str, compiler: str = "gcc") -> Path:
        path = tmp_path / "program"
        command = [compiler, "-x", "c", "-o", str(path), "-", "-x", "none", *flags, "-lm"]
        text = "#include <math.h>\nint main(int n, char **v) { (void)v; return sin(n) > 2; }"
        subprocess.run(command, input=text.encode(), check=True)
        return path

    return make


@pytest.mark.parametrize("flags", [["-static"], ["-static-pie"], ["-c"]])
def test_what_needs_no_library(compiled: Callable[..., Path], flags: list[str]) -> None:
    check_copy(compiled(*flags), AMD64, [])


@pytest.mark.parametrize("flags", [[], ["-no-pie"]])
def test_what_needs_libraries(compiled: Callable[..., Path], flags: list[str]) -> None:
    path = compiled(*flags, "-Wl,--no-as-needed")
    with pytest.raises(KinstError) as caught:
        check_copy(path, AMD64, [])
    assert str(caught.value) == (
        f"--copy {path}: it needs libm.so.6, libc.so.6, and the guest has no libraries"
        " (link it with -static; --root / runs programs of the host with all that they need)"
    )


def test_a_program_for_another_machine(compiled: Callable[..., Path]) -> None:
    path = compiled("-static", compiler="aarch64-linux-gnu-gcc")
    check_copy(path, load("arm64"), [])
    with pytest.raises(KinstError, match="a program for arm64, and the guest is amd64"):
        check_copy(path, AMD64, [])


@pytest.mark.parametrize("line", ["#!/bin/sh", "#! /bin/sh -e", "#!/bin/awk -f", "#!/bin/mine", ""])
def test_scripts_that_can_be_run(tmp_path: Path, line: str) -> None:
    path = tmp_path / "script"
    path.write_text(f"{line}\necho\n")
    check_copy(path, AMD64, ["mine", "script"])


@pytest.mark.parametrize("program", ["/usr/bin/env", "/bin/bash", "/usr/bin/python3"])
def test_scripts_without_their_interpreter(tmp_path: Path, program: str) -> None:
    path = tmp_path / "script"
    path.write_text(f"#!{program} x\n")
    with pytest.raises(KinstError, match=f"it is run by {program}, which is not in the guest"):
        check_copy(path, AMD64, [])


def test_a_shell_that_is_copied_too(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text("#!/bin/bash\n")
    check_copy(path, AMD64, ["bash", "script"])


def test_data(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"")
    check_copy(path, AMD64, [])
    with pytest.raises(KinstError, match="No such file"):
        check_copy(tmp_path / "none", AMD64, [])


def test_a_root_for_this_guest(tmp_path: Path, compiled: Callable[..., Path]) -> None:
    """Its shell may be a link, or below one; an absolute link begins at that root."""
    check_root(Path("/"), AMD64)
    program = compiled("-static")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    with pytest.raises(KinstError, match="it has no /bin/sh"):
        check_root(tmp_path, AMD64)
    program.rename(tmp_path / "usr/bin/own-shell")
    (tmp_path / "bin/sh").symlink_to("/usr/bin/own-shell")
    check_root(tmp_path, AMD64)
    with pytest.raises(KinstError, match="its programs are for amd64, and the guest is riscv64"):
        check_root(tmp_path, load("riscv64"))
