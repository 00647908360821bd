"""flamegraph.pl accepts kinst flame's folded stacks: the boxes that it draws are compared with the
stacks.

The script is in a Debian package of a profiler for Perl.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kinst.events import Aggregation, Frame, Key, Stack
from kinst.views.folded import FoldedStack, fold, folded_text

PACKAGE, SCRIPT = "libdevel-nytprof-perl", "usr/share/perl5/Devel/NYTProf/flamegraph.pl"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("apt-get"), reason="the script is in a Debian package"),
]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flamegraph")
    fetch = ["apt-get", "-q", "download", PACKAGE]
    done = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"apt-get cannot fetch {PACKAGE}: {done.stderr}"
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    return folder / SCRIPT


def boxes(folded: tuple[FoldedStack, ...]) -> Counter[tuple[str, int]]:
    """Return (name, value) of each box: frames below the same frames are one."""
    values: Counter[tuple[str, ...]] = Counter()
    for stack in folded:
        for depth in range(len(stack.frames) + 1):
            values[stack.frames[:depth]] += stack.value
    return Counter((frames[-1] if frames else "all", n) for frames, n in values.items())


def test_every_box_is_there(script: Path) -> None:
    frames = [Frame(k, "vmlinux", f"function_{k}", inlined=k == 2) for k in range(6)]
    rows: dict[Key, int] = {
        ("cat", Stack("kernel", (frames[3], frames[1], frames[0]))): 7,
        ("cat", Stack("kernel", (frames[2], frames[1], frames[0]))): 2,
        ("cat", Stack("kernel", (frames[0], frames[1], frames[0]))): 7,
        ("a;b & c", Stack("kernel", (frames[5], frames[4]))): 11,
    }
    folded = fold(Aggregation("", "count", ("string", "stack"), rows))
    drawn = subprocess.run(
        ["perl", str(script), "--minwidth", "0"],
        input=folded_text(folded), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert drawn.stderr == ""
    found = re.findall(r"<title>(.*) \((\d+) samples, [\d.]+%\)</title>", drawn.stdout)
    assert Counter((html.unescape(name), int(n)) for name, n in found) == boxes(folded)
