"""kinst cache: every file of the cache has a kind, sizes are those on disk, and clear asks
first."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from kinst.cli import command
from kinst.cli.commands.cache import JOURNAL, KINDS, size_text

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "kinst"
    (folder / "kernels/amd64/6.1").mkdir(parents=True)
    (folder / "kernels/amd64/6.1/vmlinux").write_bytes(b"x" * 3_000_000)
    (folder / "guests").mkdir()
    with (folder / "guests/a.guest").open("wb") as file:
        file.write(b"y" * 8192)
        file.truncate(1 << 30)  # a hole
    (folder / "dwarf-1-2.index").write_bytes(b"z" * 50_000)
    (folder / JOURNAL).mkdir()
    (folder / JOURNAL / "boot").write_text("")
    return folder


def sizes(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert command.main(["cache"]) == 0
    rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    return {row[0]: row[1] for row in rows}


def on_disk(path: Path) -> int:
    done = subprocess.run(["du", "-s", "-B1", path], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def test_sizes_are_those_of_du(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = sizes(capsys)
    assert [*found] == [*(kind.name for kind in KINDS), "all"]
    assert found["kernels"] == size_text(on_disk(cache / "kernels"))
    assert found["guests"] == size_text(on_disk(cache / "guests")) and "GB" not in found["guests"]
    assert found["indexes"] == size_text(on_disk(cache / "dwarf-1-2.index"))
    assert found["tools"] == found["sources"] == "0 B"
    assert [size_text(n) for n in (999, 1000, 669_000_000, 3_456_000_000)] == [
        "999 B", "1 kB", "669 MB", "3.46 GB"
    ]  # fmt: skip


def test_without_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert sizes(capsys)["all"] == "0 B"
    assert command.main(["cache", "clear", "--yes", "guests"]) == 0
    assert capsys.readouterr().err == "kinst: nothing to delete: the cache has none of these\n"


def test_clear_deletes_that_kind_alone(cache: Path) -> None:
    assert command.main(["cache", "clear", "kernels", "indexes", "--yes"]) == 0
    left = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
    assert left == {"guests/a.guest", f"{JOURNAL}/boot"}
    every = [kind.name for kind in KINDS]
    assert command.main(["cache", "clear", "--yes", *every]) == 0
    assert (cache / JOURNAL / "boot").exists()


@pytest.mark.parametrize(("answer", "deleted"), [("y", True), ("n", False), ("", False)])
def test_clear_asks(cache: Path, answer: str, deleted: bool) -> None:
    master, terminal = pty.openpty()
    os.write(master, f"{answer}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "kinst.cli.command", "cache", "clear", "guests"],
        stdin=terminal, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    os.close(master)
    os.close(terminal)
    assert done.stderr.startswith("Delete guests (")
    assert (cache / "guests").exists() != deleted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clear"], "clear which kind? (kernels, indexes, guests, tools, sources)"),
        (["clear", "--yes", "planted"],
         "planted: no such kind (kernels, indexes, guests, tools, sources)"),
        (["empty"], "unknown action empty (kinst cache clear KIND...)"),
        (["--all"], "unknown option --all (kinst cache --help)"),
    ],
)  # fmt: skip
def test_a_wrong_command_line(
    cache: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["cache", *words]) == 2
    assert capsys.readouterr().err == f"kinst: {message}\nTry 'kinst --help'.\n"
    assert (cache / "guests/a.guest").exists()


def test_every_folder_of_the_cache_has_a_kind() -> None:
    """All names that the code joins to the cache's folder belong to a kind or the journal."""
    known = {place for kind in KINDS for place in kind.patterns} | {JOURNAL}
    used = set()
    for path in (ROOT / "kinst").rglob("*.py"):
        for name in re.findall(r'cache(?:_folder\(\))? / f?"([^"/]+)', path.read_text()):
            used.add(re.sub(r"\{.*?\}", "0", name))
    assert len(used) >= 8
    unknown = {name for name in used if not any(fnmatch(name, place) for place in known)}
    assert unknown == set()
