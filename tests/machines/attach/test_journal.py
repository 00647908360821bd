"""The journal of an attached machine: exactly the written records are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kinst.machines.attach.changes import Changes
from kinst.machines.attach.guest_allocation import GuestAllocation
from kinst.machines.attach.journal import Journal

ALLOCATION = GuestAllocation(
    [(1 << 63, 1 << 30, 4 << 20), ((1 << 63) + (4 << 20), 1 << 31, 2 << 20)], (1, 2, 3), True,
    [(7 << 40, 4096, 9, 8192)],
)  # fmt: skip


def array(*values: int, kind: type = np.uint8) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, kind)


def places(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return array(*values, kind=np.uint64)


def written(folder: Path) -> tuple[Journal, list[int]]:
    """Return a journal, and its length after each record."""
    journal = Journal(os.getpid(), "1", folder)
    journal.begin()
    assert not journal.is_there
    ends = []
    for note in (
        lambda: journal.allocation(GuestAllocation([], (1, 2, 3))),
        lambda: journal.allocation(ALLOCATION),
        lambda: journal.table(0x1000, b"before..", b"now....."),
        lambda: journal.mapped(1 << 63, (1 << 63) + 4096),
        lambda: journal.text(places(1 << 63, 5), array(1, 2), array(0xCC, 0xE9)),
        lambda: journal.written(),
        lambda: journal.text(places(5, 6), array(0xE9, 3), array(2, 0xCC)),
        lambda: journal.written(),
    ):
        note()
        ends.append(next(folder.iterdir()).stat().st_size)
    return journal, ends


def test_what_is_written_is_read(tmp_path: Path) -> None:
    journal, _ = written(tmp_path)
    changes, allocation = Journal(os.getpid(), "1", tmp_path).read()
    assert allocation == ALLOCATION
    # Byte 5 has its original value again.
    assert changes.text == {1 << 63: (1, b"\xcc"), 6: (3, b"\xcc")}
    assert changes.sites().tolist() == [5, 6, 1 << 63]
    assert changes.tables == [(0x1000, b"before..", b"now.....")]
    assert changes.mapped == [(1 << 63, (1 << 63) + 4096)]
    assert not Journal(os.getpid(), "2", tmp_path).is_there
    journal.over()
    assert not list(tmp_path.iterdir())
    assert Journal(os.getpid(), "1", tmp_path).read() == (Changes(), None)


def test_a_record_that_was_cut_off_is_none(tmp_path: Path) -> None:
    _, ends = written(tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        changes, allocation = Journal(os.getpid(), "1", tmp_path).read()
        records = sum(end <= size for end in ends)
        assert (allocation == ALLOCATION) == (records >= 2)
        assert len(changes.tables) == (records >= 3)
        assert len(changes.mapped) == (records >= 4)
        assert len(changes.text) == (0, 0, 0, 0, 0, 2, 2, 3, 2)[records]
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        changes, _ = Journal(os.getpid(), "1", tmp_path).read()
        assert set(changes.text) <= {1 << 63, 5, 6}
        # The damaged record, and all after it, do not count.
        assert len(changes.ever) < 2 or (at >= ends[-2] and changes.noted), at


def test_those_of_processes_that_are_gone_go(tmp_path: Path) -> None:
    journal, _ = written(tmp_path)
    mine = next(tmp_path.iterdir()).name
    boot = mine.rsplit("-", 2)[0]
    for name in (f"{boot}-999999999-5", f"another-boot-{os.getpid()}-1", "nobodys"):
        (tmp_path / name).write_bytes(b"")
    Journal(os.getpid(), "7", tmp_path).begin()
    assert {path.name for path in tmp_path.iterdir()} == {
        mine,
        f"{boot}-{os.getpid()}-7",
        "nobodys",
    }
    assert journal.is_there
    journal.begin()
    assert not journal.is_there


def test_half_a_journal_is_none(tmp_path: Path) -> None:
    """A journal is deleted when a record cannot be written, and is not made again."""
    journal = Journal(os.getpid(), "1", tmp_path)
    journal.begin()
    journal.mapped(1, 2)
    assert journal.is_there
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.symlink_to("/dev/full")
    journal.mapped(3, 4)
    assert not list(tmp_path.iterdir())
    journal.mapped(5, 6)
    Journal(os.getpid(), "1", tmp_path).mapped(7, 8)  # nor by the other process
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    journal = Journal(os.getpid(), "1", tmp_path / "file")
    journal.begin()
    journal.mapped(1, 2)
    assert not journal.is_there
    assert journal.read() == (Changes(), None)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> None:
    assert not list(tmp_path.iterdir())
