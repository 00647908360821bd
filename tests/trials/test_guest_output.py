"""What the guest's script says, as the script itself says it when the host's shell runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kinst.systems.linux.dialect import dialect
from kinst.trials.guest_output import GuestReader
from kinst.trials.guest_run import script_text

LINES = b"""noise
@warm 0
@try 3
@status 1 0
@grown kmalloc-64 2
@grown odd name 1
@later kmalloc-64 -1
@out a: Cannot allocate memory
@log [    1.234567][   T66] BUG: bad
@log [   12.345678] plain
@end 3
@try 4
@hang 4 second
@log [   13.0] sysrq: Show Blocked State
@over
"""


def test_lines_cut_anywhere() -> None:
    reader = GuestReader()
    for at in range(0, len(LINES), 5):
        reader.take(LINES[at : at + 5])
    first, second = reader.tries
    assert (reader.warm, reader.hang_told) == (0, True)
    assert (first.number, first.status, first.second, first.over) == (3, 1, 0, True)
    assert first.grown == {"kmalloc-64": 2, "odd name": 1} and first.later == {"kmalloc-64": -1}
    assert first.output == ["a: Cannot allocate memory"]
    assert first.log == ["BUG: bad", "plain"]
    assert (second.number, second.hung, second.over) == (4, "second", False)
    assert second.log == ["sysrq: Show Blocked State"]


def test_a_hang_before_the_first_try() -> None:
    reader = GuestReader()
    reader.take(b"@hang 0 warm\n@over\n")
    assert [(one.number, one.hung) for one in reader.tries] == [(0, "warm")]


def _run(tmp_path: Path, command: str, numbers: list[int], expected: int | None) -> GuestReader:
    """Run the script in the host's shell, with files of its own in place of the kernel's."""
    facts = dialect().trials
    assert facts is not None
    text = script_text(facts, command, numbers, expected, 30)
    for path in ("/proc/sys", "/sys/kernel/slab", "/proc/slabinfo", "/tmp/kinst-trials"):
        assert path in text
        text = text.replace(path, str(tmp_path / Path(path).name))
    (tmp_path / "slabinfo").write_text("slabinfo - version: 2.1\nkmalloc-64 10 20\n")
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/kernel").mkdir()
    (tmp_path / "slab").mkdir()
    told = "#!/bin/sh\n"
    (tmp_path / "bin").mkdir()
    for name, body in {"dmesg": "cat /dev/null", "sync": ":"}.items():
        (tmp_path / "bin" / name).write_text(f"{told}{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", text], capture_output=True, timeout=60, cwd=tmp_path,
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stderr == b"", done.stderr
    reader = GuestReader()
    reader.take(done.stdout)
    return reader


def test_the_script(tmp_path: Path) -> None:
    """Each run of the command lets a cache grow: by two at the first call of a try, else by one."""
    grow = (
        "n=$(cat runs 2>/dev/null || echo 0); echo $((n + 1)) >runs;"
        ' echo "kmalloc-64 $((10 + n)) 20" >slabinfo; echo said; exit 3'
    )
    reader = _run(tmp_path, grow, [5, 6], 3)
    assert reader.warm == 3
    assert [(one.number, one.status, one.second, one.over) for one in reader.tries] == [
        (5, 3, 3, True), (6, 3, 3, True),
    ]  # fmt: skip
    assert reader.tries[0].grown == {"kmalloc-64": 1} == reader.tries[0].later
    assert reader.tries[0].output == ["said"]


def test_the_script_ends_if_the_command_fails_afterwards(tmp_path: Path) -> None:
    reader = _run(tmp_path, "exit 1", [5, 6], 0)
    assert [(one.number, one.second) for one in reader.tries] == [(5, 1)]
