"""kinst top on a real kernel: its screen while it runs, and Ctrl-C, which undoes everything."""

from __future__ import annotations

import re

import pytest

from tests.top_terminal import Terminal, keys_of

pytestmark = pytest.mark.vm


def test_reads_as_they_happen() -> None:
    program = "fbt::vfs_read:entry { @[execname] = count(); }"
    command = "while :; do dd if=/dev/zero of=/dev/null count=1000 2>/dev/null; done"
    top = Terminal("-v", "--every", "200ms", "-n", program, "-c", command)
    top.until(lambda screen: "dd" in keys_of(screen) and "█" in screen)
    seen = re.search(r"^dd +([\d,]+) ", top.screen, re.MULTILINE)
    assert seen and int(seen[1].replace(",", "")) > 0
    top.type("\x03")
    assert top.status() == 0
    assert "kinst: kernel text is as before (" in top.written
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", top.written.split("\x1b[?1049l")[-1])
    found = re.search(r"^dd +([\d,]+) ", last, re.MULTILINE)
    assert found and int(found[1].replace(",", "")) >= int(seen[1].replace(",", ""))
