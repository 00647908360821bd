"""The page of kinst annotate --html for a user program, in a browser, at the width of a screen and
of a telephone. Skipped without Chromium."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kinst.cli import command
from tests.machines.process.stepped import needs_programs
from tests.machines.process.test_count_command import CALLS, DEEPER, SOURCE
from tests.machines.process.test_pid import listing
from tests.views.test_annotated_page import CHROMIUM

pytestmark = [
    needs_programs,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="apt install chromium"),
]
# A window of Chromium has at least 500 pixels, a frame in it any number.
_FRAME = """<!doctype html><body style="margin: 0">
<iframe style="width: WIDTHpx; height: 900px; border: 0"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument;
  const texts = (chosen) => [...page.querySelectorAll(chosen)].map((one) => one.textContent);
  const seen = { width: frame.contentWindow.innerWidth, needed: page.documentElement.scrollWidth,
    counts: texts("#code .row .count"), summary: page.getElementById("summary").textContent,
    source: texts("#source .row .text"), blocks: page.querySelectorAll("#flow svg rect").length };
  document.body.replaceChildren(Object.assign(document.createElement("pre"),
    { id: "seen", textContent: JSON.stringify(seen) }));
};
frame.srcdoc = PAGE;
</script></body>"""


def opened(page: Path, width: int) -> dict[str, Any]:
    """Open a page in a window of this width, and return what it shows."""
    text = json.dumps(page.read_text()).replace("</", "<\\/")
    frame = page.with_name("frame.html")
    frame.write_text(_FRAME.replace("WIDTH", str(width)).replace("PAGE", text, 1))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"]
    profile = f"--user-data-dir={page.with_name('profile')}"
    done = subprocess.run(
        [CHROMIUM, *flags, profile, "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-1000:]
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


def test_the_page_shows_the_counts_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "fibonacci.c").write_text(SOURCE)
    options = ("-O1", "-g", "-fno-optimize-sibling-calls")
    subprocess.run(["gcc", *options, "-o", "program", "fibonacci.c"], cwd=tmp_path, check=True)
    program, page = tmp_path / "program", tmp_path / "page.html"
    words = ["annotate", "fibonacci", "--process", "--html", str(page), "-c", f"{program} x"]
    assert command.main(words) == 4
    code = listing(program)
    for width in (1280, 400):
        seen = opened(page, width)
        assert seen["width"] == width and seen["needed"] <= width
        name, *counts = seen["counts"]
        assert name == "count" and len(counts) == len(code) and counts[0] == str(CALLS)
        calls = [k for k, (_, text) in enumerate(code) if text.startswith("call")]
        assert [counts[k] for k in calls] == [str(DEEPER)] * 2
        assert any("return fibonacci(n - 1)" in text for text in seen["source"])
        assert seen["blocks"] == 3 and f"{program} x" in seen["summary"]
