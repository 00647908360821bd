"""Clocks on every instruction set, as test_builtins.py tests them for amd64.

timestamp follows the guest's monotonic clock, vtimestamp runs only while the process does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.vm.command import kinst

pytestmark = pytest.mark.vm


@pytest.mark.parametrize("isa", [pytest.param("arm64", marks=pytest.mark.slow), "riscv64"])
def test_clocks(isa: str, program_for: Callable[[str, str], Path]) -> None:
    """moments sleeps between its 20 reads and prints the time of each; reads only reads.

    A busy host is late now and then: most of the moments must agree well.
    """
    done = kinst(
        f"--vm={isa}", "-q", "-x", "bufsize=8m",
        "-n", 'fbt::vfs_read:entry /execname == "moments"/'
        ' { printf("moment %d %d %d\\n", timestamp, walltimestamp, vtimestamp); }'
        'fbt::vfs_read:entry /execname == "reads"/'
        ' { printf("busy %d %d\\n", timestamp, vtimestamp); }',
        "-c", "moments 20 100; reads 30000",
        copy=[program_for("moments", isa), program_for("reads", isa)],
    ).good()  # fmt: skip
    guest = [tuple(map(int, m)) for m in re.findall(r"^moment (\d+) (\d+)$", done.guest, re.M)]
    found = re.findall(r"^moment (\d+) (\d+) (\d+)$", done.out, re.M)
    ours = [tuple(map(int, m)) for m in found]
    assert len(guest) == 20 and len(ours) == 20
    assert all(a[0] < b[0] and a[1] < b[1] and a[2] <= b[2] for a, b in pairwise(ours))
    apart = [o[0] - g[0] for o, g in zip(ours, guest, strict=True)]
    spans = [a - sorted(apart)[10] for a in apart]
    assert sum(abs(span) < 20_000_000 for span in spans) >= 15, spans
    slept = ours[-1][0] - ours[0][0], ours[-1][2] - ours[0][2]
    assert 0 < slept[1] < slept[0] / 2, slept
    busy = [tuple(map(int, m)) for m in re.findall(r"^busy (\d+) (\d+)$", done.out, re.M)]
    assert len(busy) == 30000
    ran = busy[-1][0] - busy[0][0], busy[-1][1] - busy[0][1]
    assert ran[0] / 2 < ran[1] <= ran[0] * 1.01, ran
