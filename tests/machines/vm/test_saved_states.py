"""Saved states of guests as files: the written state is read, or an error is noticed."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from kinst.core.errors import TargetError
from kinst.machines.vm.saved_states import SavedStates
from kinst.wire.memory import SharedMemory

PAGE = 4096
SIZE = 256 * PAGE
DEVICES = b"CPUs and devices" * 100


def filled(seed: int = 1) -> SharedMemory:
    """Return RAM with a third of its pages in use, some of the written ones set to zero again."""
    chosen = random.Random(seed)
    ram = SharedMemory("test", SIZE)
    for page in chosen.sample(range(256), 120):
        ram.view[page * PAGE : (page + 1) * PAGE] = (
            chosen.randbytes(PAGE) if page % 3 else bytes(PAGE)
        )
    return ram


@pytest.fixture
def states(tmp_path: Path) -> SavedStates:
    return SavedStates(tmp_path / "guests")


def saved(states: SavedStates, tmp_path: Path) -> tuple[SharedMemory, Path]:
    ram = filled()
    assert states.save("one", ram.view, ram.extents(), DEVICES)
    (file,) = (tmp_path / "guests").iterdir()
    return ram, file


def test_what_is_read_is_what_was_written(states: SavedStates, tmp_path: Path) -> None:
    assert not states.has("one")
    ram, file = saved(states, tmp_path)
    used = sum(any(ram.view[k : k + PAGE]) for k in range(0, SIZE, PAGE))
    assert file.stat().st_size <= (used + 4) * PAGE
    other = SharedMemory("test", SIZE)
    assert states.has("one")
    assert states.load("one", other.view) == DEVICES
    assert sum(size for _, size in other.extents()) == used * PAGE
    assert other.view == ram.view
    kept, chosen = states.open("one", SIZE), random.Random(3)
    assert kept.devices == DEVICES and kept.read(0, SIZE) == ram.view
    for _ in range(300):
        at = chosen.randrange(SIZE)
        size = min(chosen.choice((1, 8, PAGE, 5 * PAGE)), SIZE - at)
        assert kept.read(at, size) == ram.view[at : at + size]


def test_every_damage_is_noticed(states: SavedStates, tmp_path: Path) -> None:
    _, file = saved(states, tmp_path)
    whole = file.read_bytes()
    chosen = random.Random(2)
    used = len(whole.rstrip(b"\0"))
    # The padding between header and pages has no meaning.
    head = whole.index(DEVICES) + len(DEVICES)
    places = [*range(0, 64), *(chosen.randrange(head) for _ in range(100)),
              *(chosen.randrange(-(-head // PAGE) * PAGE, used) for _ in range(100))]  # fmt: skip
    for at in places:
        file.write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << chosen.randrange(8)]) + whole[at + 1 :]
        )
        with pytest.raises(TargetError, match=r"damaged|truncated"):
            states.load("one", SharedMemory("test", SIZE).view)
        with pytest.raises(TargetError, match="damaged"):
            states.open("one", SIZE)
    # Two words have changed places: their sum is the same.
    file.write_bytes(whole[:-PAGE] + whole[-8:] + whole[-PAGE:-8])
    assert file.read_bytes() != whole
    with pytest.raises(TargetError, match="damaged"):
        states.load("one", SharedMemory("test", SIZE).view)
    with pytest.raises(TargetError, match="damaged"):
        states.open("one", SIZE)
    for length in (0, 10, 60, PAGE, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(TargetError, match=r"damaged|truncated"):
            states.load("one", SharedMemory("test", SIZE).view)
        with pytest.raises(TargetError, match="damaged"):
            states.open("one", SIZE)
    file.write_bytes(whole)
    with pytest.raises(TargetError, match="damaged"):
        states.load("one", SharedMemory("test", SIZE // 2).view)
    file.unlink()
    with pytest.raises(TargetError, match="No such file"):
        states.load("one", SharedMemory("test", SIZE).view)


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    ram = filled()
    size = SavedStates(tmp_path).save("a", ram.view, ram.extents(), DEVICES)
    states = SavedStates(tmp_path, limit=3 * size)
    now = time.time()
    for age, key in enumerate("dcb"):
        states.save(key, ram.view, ram.extents(), DEVICES)
        os.utime(tmp_path / f"{key}.guest", (now - 100 - age, now - 100 - age))
    os.utime(tmp_path / "a.guest", (now - 1000, now - 1000))
    states.load("b", SharedMemory("test", SIZE).view)  # the oldest of three, used now
    (tmp_path / "killed.part").write_bytes(b"half")
    os.utime(tmp_path / "killed.part", (now - 7200, now - 7200))
    (tmp_path / "writing.part").write_bytes(b"half")
    states.save("e", ram.view, ram.extents(), DEVICES)
    assert {p.name for p in tmp_path.iterdir()} == {"b.guest", "d.guest", "e.guest", "writing.part"}
    # A state larger than the limit for all of them is still saved, because it is in use.
    SavedStates(tmp_path, limit=1).save("f", ram.view, ram.extents(), DEVICES)
    assert {p.name for p in tmp_path.iterdir()} == {"f.guest", "writing.part"}


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "guests").write_bytes(b"a file")
    ram = filled()
    assert SavedStates(tmp_path / "guests").save("one", ram.view, ram.extents(), DEVICES) == 0
