"""Search for the vmlinux of a kernel that runs already, and the message if it is nowhere.

Files are made by gcc and ld, which give them their build-ids.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.core.kernel_package import KernelBuild
from kinst.kernels.vmlinux_search import find_vmlinux
from tests.debuginfod_server import debuginfod_server

RELEASE = "9.9.0-1-amd64"
BUILD_ID = "0123456789abcdef0123456789abcdef01234567"
OTHER = "ab" * 20
BUILD = KernelBuild(RELEASE, BUILD_ID)
IN_DEBIAN = f"usr/lib/debug/boot/vmlinux-{RELEASE}"
BY_ID = f"usr/lib/debug/.build-id/{BUILD_ID[:2]}/{BUILD_ID[2:]}.debug"

Made = Callable[[Path, str], Path]


def ignore(what: str, part: float | None) -> None:
    pass


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Links a file with a build-id at a path."""
    source = tmp_path / "image.c"
    source.write_text("int first(void) { return 1; }\n")

    def make(path: Path, build_id: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        identity = f"-Wl,--build-id=0x{build_id},-e,first"
        command = ["gcc", "-nostdlib", "-static", identity, "-o", str(path), str(source)]
        subprocess.run(command, check=True)
        return path

    return make


@pytest.fixture(autouse=True)
def nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No debuginfod server, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)


@pytest.mark.parametrize(
    "place",
    [
        f"home/kinst/kernels/amd64/{RELEASE}/{IN_DEBIAN}",
        f"root/{BY_ID}",
        f"root/{IN_DEBIAN}",
        f"root/usr/lib/debug/lib/modules/{RELEASE}/vmlinux",
        f"root/lib/modules/{RELEASE}/build/vmlinux",
    ],
)
def test_the_build_is_found(tmp_path: Path, made: Made, place: str) -> None:
    file = made(tmp_path / place, BUILD_ID)
    assert find_vmlinux(BUILD, ignore, tmp_path / "root") == file


def test_another_build_of_the_same_release_is_passed_over(tmp_path: Path, made: Made) -> None:
    """A kernel that was built again has the release of the one that runs."""
    made(tmp_path / f"home/kinst/kernels/amd64/{RELEASE}/{IN_DEBIAN}", OTHER)
    made(tmp_path / "root" / IN_DEBIAN, OTHER)
    right = made(tmp_path / f"root/usr/lib/debug/lib/modules/{RELEASE}/vmlinux", BUILD_ID)
    assert find_vmlinux(BUILD, ignore, tmp_path / "root") == right


def test_a_debuginfod_server_is_asked_last(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made(tmp_path / "served", BUILD_ID).read_bytes()
    with debuginfod_server({BUILD_ID: data}, tmp_path / "fetched", monkeypatch):
        assert find_vmlinux(BUILD, ignore, tmp_path / "root").read_bytes() == data
        installed = made(tmp_path / "root" / BY_ID, BUILD_ID)
        assert find_vmlinux(BUILD, ignore, tmp_path / "root") == installed


def test_without_any_all_places_are_named(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = made(tmp_path / "root" / IN_DEBIAN, OTHER)
    with pytest.raises(KinstError) as told:
        find_vmlinux(BUILD, ignore, tmp_path / "root")
    text = str(told.value)
    assert BUILD_ID in text and RELEASE in text
    assert f"{wrong} (which is another build)" in text
    assert str(tmp_path / "root" / BY_ID) in text
    assert str(tmp_path / "home/kinst/kernels") in text
    assert "DEBUGINFOD_URLS names no server" in text
    assert f"linux-image-{RELEASE}-dbg" in str(told.value.hint)
    with debuginfod_server({}, tmp_path / "fetched", monkeypatch) as url:
        with pytest.raises(KinstError) as told:
            find_vmlinux(BUILD, ignore, tmp_path / "root")
        assert f"{url} (DEBUGINFOD_URLS)" in str(told.value)
