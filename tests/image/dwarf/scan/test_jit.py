"""Compiled code of the scan as it is kept in files: complete, under its name, for its sources, for
a month."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numba
import pytest

from kinst.image.dwarf.scan import jit

KEY, OTHER = ("int64(int64)", "this processor"), ("float64(int64)", "this processor")
DATA = {"code": bytes(range(50))}


def kept(folder: Path, name: str = "scan", stamp: object = (1.5, 100)) -> Any:
    return jit._CheckedFile(str(folder), name, stamp)


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    kept(tmp_path).save(KEY, DATA)
    assert kept(tmp_path).load(KEY) == DATA and kept(tmp_path).load(OTHER) is None
    kept(tmp_path).save(OTHER, [1, 2])
    assert kept(tmp_path).load(KEY) == DATA and kept(tmp_path).load(OTHER) == [1, 2]
    assert kept(tmp_path, "other").load(KEY) is None
    assert kept(tmp_path, stamp=(1.5, 101)).load(KEY) is None
    # A change of the source invalidates the kept code.
    kept(tmp_path, stamp=(2.5, 90)).save(OTHER, 3)
    assert kept(tmp_path).load(KEY) is None
    assert kept(tmp_path, stamp=(2.5, 90)).load(KEY) is None


def test_damaged_files_are_none(tmp_path: Path) -> None:
    """Damaged at any byte, cut off anywhere, or those of another function."""
    kept(tmp_path).save(KEY, DATA)
    files = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(files) == {".nbi", ".nbc"}
    for path in files.values():
        whole = path.read_bytes()
        damaged = [
            whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(len(whole))
        ]
        for data in [*damaged, *(whole[:size] for size in range(len(whole))), whole + b"\0"]:
            path.write_bytes(data)
            assert kept(tmp_path).load(KEY) is None
        path.unlink()
        assert kept(tmp_path).load(KEY) is None
        path.write_bytes(whole)
        assert kept(tmp_path).load(KEY) == DATA
    for path in files.values():
        path.rename(path.with_name(path.name.replace("scan", "other")))
    assert kept(tmp_path, "other").load(KEY) is None


def test_how_long_the_code_of_other_versions_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty days, by the time of its folder; the present version's forever."""
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    mine = jit._code_folder()
    assert mine.parent == tmp_path / "compiled" and jit._code_folder() == mine
    ages = {"old": 30.1, "older": 1000, "young": 29.9, "new": 0, mine.name: 1000}
    for name, days in ages.items():
        folder = tmp_path / "compiled" / name
        (folder / "below").mkdir(parents=True)
        before = time.time() - days * 24 * 60 * 60
        os.utime(folder, (before, before))
    assert jit._code_folder() == mine
    left = {path.name for path in (tmp_path / "compiled").iterdir()}
    assert left == {"young", "new", mine.name}


class Compiled:
    """Stands for a compiled function, without compiling it."""

    def __init__(self, function: Any) -> None:
        self.py_func = function
        self.signatures: list[Any] = []
        self.open = True

    def compile(self, signature: Any) -> None:
        assert self.open
        self.signatures.append(signature)

    def disable_compile(self) -> None:
        self.open = False


def test_each_inner_function_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the types of its annotations."""

    def first(a: int, b: bool) -> int:
        return a

    def second(a: int) -> tuple[int, int]:
        return a, a

    made = [Compiled(first), Compiled(second)]
    monkeypatch.setattr(jit, "_INNER", made)
    monkeypatch.setattr(jit, "_EXAMPLES", {})
    for _ in range(2):
        jit._compile_inner()
    whole, pair = numba.int64, numba.types.UniTuple(numba.int64, 2)
    assert [one.signatures for one in made] == [[whole(whole, numba.boolean)], [pair(whole)]]
    assert not any(one.open for one in made)
