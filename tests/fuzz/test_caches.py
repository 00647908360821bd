"""Damaged files of the cache: each is recognised as damaged or read correctly; nothing else is
raised.

The files are small ones of each kind, written by kinst's own code.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinst.cli.completion.index import NameIndex
from kinst.cli.completion.prepare import write_names
from kinst.core.errors import TargetError
from kinst.core.whole_files import write_whole
from kinst.image import saved_arrays
from kinst.image.dwarf.scan.jit import _CheckedFile
from kinst.machines.vm.saved_states import SavedStates
from kinst.wire.memory import SharedMemory
from tests.fuzz.damage import chance, damaged

PAGE = 4096
FEW, MANY = 1500, 25_000


@dataclass(frozen=True)
class Kind:
    """A kind of files.

    Attributes:
        path: the file that is damaged.
        others: other files of this kind.
        read: returns the file's content, or None if it is no such file.
        remake: writes it again.
    """

    path: Path
    others: tuple[Path, ...]
    read: Callable[[], Any]
    remake: Callable[[], Any]


def saved_index(folder: Path) -> Kind:
    path = folder / "dwarf-1.index"
    arrays = {"a": np.arange(100, dtype=np.uint32), "b": np.arange(33, dtype=np.uint8)}

    def read() -> Any:
        found = saved_arrays.load(path, "key 1")
        return None if found is None else {name: bytes(view) for name, view in found.items()}

    def remake() -> None:
        assert saved_arrays.save(path, "key 1", arrays)

    other = folder / "dwarf-2.index"
    saved_arrays.save(other, "key 2", {**arrays, "b": np.zeros(33, np.uint8)})
    return Kind(path, (other,), read, remake)


def compiled_code(folder: Path, part: str) -> Kind:
    mine, other = (_CheckedFile(str(folder), name, ("stamp", 1)) for name in ("f-1", "g-1"))
    names = {("signature", "cpu"): "f-1.1.nbc"}
    for number, one in enumerate((mine, other)):
        one._save_index({**names, number: "more"})
        one._save_data(one._data_name(1), ("machine code", number, bytes(300)))
    path, wrong = ((Path(one._index_path) if part == "index" else
                    Path(one._data_path(one._data_name(1)))) for one in (mine, other))  # fmt: skip

    def read() -> Any:
        try:
            return mine._load_index() or None if part == "index" else mine._load_data(path.name)
        except OSError:
            return None  # numba compiles

    def remake() -> None:
        mine._save_index({**names, 0: "more"})
        mine._save_data(mine._data_name(1), ("machine code", 0, bytes(300)))

    return Kind(path, (wrong,), read, remake)


def booted_guest(folder: Path) -> Kind:
    states = SavedStates(folder)
    ram, other = (SharedMemory("test", 16 * PAGE) for _ in range(2))
    ram.view[2 * PAGE : 2 * PAGE + 9] = b"the guest"
    other.view[5 * PAGE : 5 * PAGE + 5] = b"other"
    states.save("two", other.view, other.extents(), b"devices")

    def read() -> Any:
        into = SharedMemory("test", 16 * PAGE)
        try:
            devices = states.load("one", into.view)
            return devices, bytes(into.view)
        except TargetError:
            return None
        finally:
            into.close()

    def remake() -> None:
        assert states.save("one", ram.view, ram.extents(), b"devices")

    remake()
    return Kind(folder / "one.guest", (folder / "two.guest",), read, remake)


def names_of_a_kernel(folder: Path) -> Kind:
    path, other = folder / "a.names", folder / "b.names"
    rows = [f"function_{k:03}\tf\t{k}\t{k}\tffff{k:x}" for k in range(50)]
    write_names(other, {"debug": "other"}, rows)

    def read() -> Any:
        try:
            index = NameIndex(path)
        except (OSError, ValueError):
            return None
        return index.about["debug"], list(index.begin_with(""))

    def remake() -> None:
        write_names(path, {"debug": "this"}, rows)

    return Kind(path, (), read, remake)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "index": saved_index,
    "code's index": lambda folder: compiled_code(folder, "index"),
    "code": lambda folder: compiled_code(folder, "data"),
    "guest": booted_guest,
    "names": names_of_a_kernel,
}


def run(kind: Kind, times: int) -> None:
    draw = chance()
    kind.remake()
    whole, right = kind.path.read_bytes(), kind.read()
    assert right is not None
    others = tuple(path.read_bytes() for path in kind.others)
    noticed = 0
    for number in range(times):
        data = damaged(whole, draw, others)
        kind.path.write_bytes(data)
        found = kind.read()
        assert found is None or found == right, (number, data)
        noticed += found is None
    # The padding in a guest's file has no meaning.
    assert noticed > 0.5 * times
    kind.remake()
    assert kind.read() == right


@pytest.mark.parametrize("name", KINDS)
def test_damage_is_noticed(name: str, tmp_path: Path) -> None:
    run(KINDS[name](tmp_path), FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_much_damage_is_noticed(name: str, tmp_path: Path) -> None:
    run(KINDS[name](tmp_path), MANY)


@pytest.mark.parametrize("name", KINDS)
def test_other_things_in_its_place(name: str, tmp_path: Path) -> None:
    kind = KINDS[name](tmp_path)
    for path in things(kind):
        assert kind.read() is None, path
    kind.remake()
    assert kind.read() is not None


def things(kind: Kind) -> Iterator[Path]:
    """Return nothing, a folder, a link to nothing, and an empty file."""
    kind.path.unlink(missing_ok=True)
    yield kind.path
    kind.path.mkdir()
    yield kind.path
    shutil.rmtree(kind.path)
    kind.path.symlink_to("nowhere")
    yield kind.path
    kind.path.unlink()
    kind.path.write_bytes(b"")
    yield kind.path


def test_what_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/folder").mkdir()
    assert not write_whole(tmp_path / "a/folder", [b"data"])  # the damaged entry is no file
    assert not write_whole(Path("/proc/nowhere/file"), [b"data"])
    assert not write_whole(Path("/dev/null/file"), [b"data"])
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["folder"]
