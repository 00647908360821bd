"""Debug files by debuginfod's client library, from a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.wire import debuginfod
from tests.debuginfod_server import debuginfod_server

THERE = "0123456789abcdef0123456789abcdef01234567"
DATA = b"\x7fELF" + bytes(range(256)) * 20_000


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with debuginfod_server({THERE: DATA}, tmp_path / "cache", monkeypatch) as url:
        yield url


def ignore(what: str, part: float | None) -> None:
    pass


def test_a_file_is_fetched_once_with_progress(server: str) -> None:
    parts: list[float | None] = []
    found = debuginfod.find_debuginfo(THERE, lambda what, part: parts.append(part))
    assert found is not None
    assert found.read_bytes() == DATA
    assert parts
    assert all(part is None or 0 <= part <= 1 for part in parts)
    found.write_bytes(b"kept")
    assert debuginfod.find_debuginfo(THERE, ignore) == found
    assert found.read_bytes() == b"kept"


def test_what_no_server_has_is_not_there(server: str) -> None:
    assert debuginfod.find_debuginfo("ab" * 20, ignore) is None


def test_an_interruption_ends_it(server: str) -> None:
    def interrupted(what: str, part: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        debuginfod.find_debuginfo(THERE, interrupted)


def test_a_server_that_does_not_answer_is_told(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")
    with pytest.raises(KinstError, match=r"http://127\.0\.0\.1:1: .+"):
        debuginfod.find_debuginfo(THERE, ignore)


def test_without_the_library_its_package_is_named(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debuginfod, "_LIBRARY", "libno-such.so.1")
    with pytest.raises(KinstError, match="libno-such") as told:
        debuginfod.find_debuginfo(THERE, ignore)
    assert "libdebuginfod1" in str(told.value.hint)
