"""The host's files in the guest: programs of the host run there, and change nothing here except in
shared folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm.command import counts, kinst

pytestmark = pytest.mark.vm

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # another one for each boot of a kernel


def test_programs_of_the_host_run_in_the_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Callable[[str], Path]
) -> None:
    """Python and a dynamic jq run with this folder, this environment and their exit status.

    Files that they write exist in the guest but not here, except in the shared folder.
    """
    given = tmp_path / "given"
    given.mkdir()
    (tmp_path / "here").write_text("from the host\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINST_TEST", "it's 'kept'")
    command = (
        'cat here; echo "$KINST_TEST"; python3 -c "import json; print(json.dumps([1]))";'
        " echo 42 | jq . ; dynamic; echo gone >here; cat here; test -t 1 || echo no terminal;"
        " echo kept >given/out; cat given/out; seq 50000; sleep 1000 & exit 7"
    )
    monkeypatch.setenv("PATH", f"{compiled('dynamic').parent}:{os.environ['PATH']}")
    done = kinst(
        "--root", "/", "--rw", str(given),
        "-qn", 'kinst::ksys_write:0 /execname == "dynamic"/ { @ = count(); }', "-c", command,
    )  # fmt: skip
    assert done.status == 7, done
    assert not done.err
    assert done.guest.splitlines() == [
        "from the host", "it's 'kept'", "[1]", "42", "dynamic", "gone", "no terminal", "kept",
        *map(str, range(1, 50001)),
    ]  # fmt: skip
    assert counts(done.out)[()] == 1
    assert (tmp_path / "here").read_text() == "from the host\n"
    assert (given / "out").read_text() == "kept\n"


@pytest.mark.slow
def test_a_test_suite_runs_in_the_guest(tmp_path: Path) -> None:
    """pytest runs with the packages of this environment; its temporary folders are the guest's."""
    here = BOOT_ID.read_text()
    suite = tmp_path / "test_in_the_guest.py"
    suite.write_text(
        "def test_folder(tmp_path):\n    (tmp_path / 'x').write_text('y')\n"
        f"def test_another_kernel():\n    assert open({str(BOOT_ID)!r}).read() != {here!r}\n"
        "def test_failing():\n    assert False\n"
    )
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider {suite}"
    done = kinst("--root", "/", "-qn", "kinst::vfs_read:0 { @ = count(); }", "-c", command)
    assert done.status == 1, done
    assert "1 failed, 2 passed" in done.guest and not done.err


@pytest.fixture
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that compiles a program that writes its name, linked dynamically."""

    def make(name: str) -> Path:
        path = tmp_path_factory.mktemp("bin") / name
        text = f'#include <unistd.h>\nint main(void) {{ return write(1, "{name}\\n", 8) != 8; }}'
        command = ["gcc", "-O1", "-x", "c", "-o", str(path), "-"]
        subprocess.run(command, input=text.encode(), check=True)
        return path

    return make


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="as-ever"),
        *(
            pytest.param(options, id="-".join(options), marks=pytest.mark.slow)
            for options in (
                ("--cold",),
                ("--vm=arm64",),
                ("--vm=arm64", "--cold"),
                ("--vm=riscv64",),
                # The guest detects devices that are plugged in only when told to rescan.
                ("--append", "acpiphp.disable=1"),
            )
        ),
    ],
)
def test_a_folder_of_busyboxs_guest(more: tuple[str, ...], tmp_path: Path) -> None:
    """Share a folder with busybox's guest, which has no root of the host's.

    The folder has the same path; the first guest boots, the second continues from its state.
    """
    (tmp_path / "in").write_text("given\n")
    for number in range(1, 3):
        done = kinst(
            *more, "--rw", str(tmp_path), "-qn", "kinst::vfs_read:0 { @ = count(); }",
            "-c", f"cd {tmp_path} && cat in && cp in out{number}",
        ).good()  # fmt: skip
        assert done.guest == "given\n"
        assert (tmp_path / f"out{number}").read_text() == "given\n"
