"""Source text from folders and from archives like Debian's."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.kernels.source_text import find_source, package_of, read_sources


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/kinst/sources"


def archive(path: Path, texts: dict[str, str]) -> Path:
    with tarfile.open(path, "w:xz") as out:
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            out.addfile(member, io.BytesIO(text.encode()))
    return path


def ignored(what: str, part: float | None) -> None:
    pass


def test_a_folder_with_other_folders_around(tmp_path: Path) -> None:
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs/a.c").write_text("one\ntwo\n")
    names = ["fs/a.c", "/build/linux/fs/a.c", "./fs/../fs/a.c", "fs/b.c"]
    found = read_sources(tmp_path, names, ignored)
    assert found == {name: ["one", "two"] for name in names[:3]}


def test_an_archive_is_read_once(tmp_path: Path, own_cache: Path) -> None:
    texts = {"linux-source-6.1/fs/a.c": "one\n", "linux-source-6.1/fs/b.c": "b\n"}
    packed = archive(tmp_path / "linux-source-6.1.tar.xz", texts)
    said: list[str] = []
    names = ["fs/a.c", "fs/nosuch.c", "../../etc/passwd", "/etc/passwd"]
    for _ in range(2):
        found = read_sources(packed, names, lambda what, part: said.append(what))
        assert found == {"fs/a.c": ["one"]}
    assert len(said) == 2 and "unpacking 2 files" in said[0]
    kept = [path.name for path in own_cache.rglob("*") if path.is_file()]
    assert sorted(kept) == ["a.c", "nosuch.c"]


def test_a_damaged_archive(tmp_path: Path) -> None:
    broken = tmp_path / "linux-source-6.1.tar.xz"
    broken.write_bytes(b"no archive")
    with pytest.raises(KinstError, match="cannot be unpacked"):
        read_sources(broken, ["fs/a.c"], ignored)


def test_where_it_is_found(tmp_path: Path) -> None:
    assert package_of("6.1.0-56-cloud-amd64") == "linux-source-6.1" and package_of("v7") == ""
    assert find_source("", "6.1.0-56-amd64", tmp_path) is None
    packed = tmp_path / "linux-source-6.1.tar.xz"
    packed.write_bytes(b"")
    assert find_source("", "6.1.0-56-amd64", tmp_path) == packed
    assert find_source(str(tmp_path), "6.1.0", tmp_path) == tmp_path
    with pytest.raises(KinstError, match="no such folder or archive"):
        find_source("/nosuch", "6.1.0", tmp_path)
