"""Source text for views: from the given folder, and the reason if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.cli.sources import SourceFiles, source_files
from kinst.errors import KinstError


def test_the_lines_of_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs/read.c").write_text("one\ntwo\n")
    found = source_files(str(tmp_path), "6.1.0", ["./fs/read.c", "fs/none.c"])
    assert found == SourceFiles({"./fs/read.c": ["one", "two"]})


def test_files_with_a_whole_path_need_no_source(tmp_path: Path) -> None:
    own = tmp_path / "module.c"
    own.write_text("one\ntwo\n")
    found = source_files("", "0.9.1-none", [str(own), "fs/read.c"])
    assert found == SourceFiles({str(own): ["one", "two"]})
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs/read.c").write_text("three\n")
    found = source_files(str(tmp_path / "fs"), "6.1.0", [str(own), "fs/read.c"])
    assert found.lines == {str(own): ["one", "two"], "fs/read.c": ["three"]}


def test_why_there_is_none(tmp_path: Path) -> None:
    assert source_files("", "0.9.1-none", ["fs/read.c"]) == SourceFiles(
        {}, "no source text is shown: --source DIR, or apt install linux-source-0.9"
    )
    found = source_files(str(tmp_path), "6.1.0", ["fs/read.c"])
    assert not found.lines
    assert f"{tmp_path} has no fs/read.c nor any other of its files" in found.missing
    with pytest.raises(KinstError, match="no such folder"):
        source_files(str(tmp_path / "none"), "6.1.0", [])
