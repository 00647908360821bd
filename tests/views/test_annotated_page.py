"""The page in a browser, by keyboard alone.  Skipped without Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kinst.views.annotated_html import annotated_html
from tests.views.made_code import annotated

CHROMIUM = shutil.which("chromium") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="apt install chromium"),
]
# Presses keys one after the other, each where the focus is, and notes the selection after each.
_PRESS = """<script>
const noted = [];
for (const key of KEYS) {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
  if (key.length > 1 && key.startsWith("=")) {
    document.activeElement.value = key.slice(1);
    document.activeElement.dispatchEvent(new Event("input"));
  } else (document.activeElement || document.body).dispatchEvent(event);
  const code = data[shown].code[at.code];
  noted.push({ key, pane: focus, at: code.at, block: at.flow, function: shown,
    focus: document.activeElement.id, found: byId("found").textContent,
    visible: rows.code.filter(row => row.offsetParent !== null).length,
    help: byId("help").open, width: view.width, line: data[shown].source[at.source].line });
  if (byId("help").open) byId("help").close();
}
document.body.replaceChildren(Object.assign(document.createElement("pre"),
  { id: "seen", textContent: JSON.stringify(noted) }));
</script></body>"""


def pressed(folder: Path, *keys: str) -> list[dict[str, Any]]:
    """Return the page's state after each key.  "=TEXT" types TEXT where the focus is."""
    page = annotated_html([annotated("x"), annotated()], "made")
    path = folder / "page.html"
    path.write_text(page.replace("</body>", _PRESS.replace("KEYS", json.dumps(keys))))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,700"]
    done = subprocess.run(
        [CHROMIUM, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-1000:]
    return json.loads(html.unescape(found[1]))


def test_every_key(tmp_path: Path) -> None:
    keys = [
        *("j", "j", "k", "End", "Home", "ArrowRight", "j", "1", "j", "2", "Home", "j", "j"),
        *("Enter", "b", "h", "/", "=eax|rbp", "Enter", "N", "]", "[", "e", "e", "?", "+", "0"),
    ]
    seen = pressed(tmp_path, *keys)
    assert [one["key"] for one in seen] == keys
    chosen = [(one["pane"], one["at"]) for one in seen]
    assert chosen[:5] == [("code", "+4"), ("code", "+8"), ("code", "+4"), ("code", "+40"),
                          ("code", "+0")]  # fmt: skip
    assert chosen[5] == ("flow", "+0") and (chosen[6], seen[6]["block"]) == (("flow", "+12"), 1)
    assert chosen[7][0] == "source" and seen[8]["line"] > seen[7]["line"]
    # From the branch to its target, and back; the hottest block.
    assert chosen[12:15] == [("code", "+8"), ("code", "+32"), ("code", "+8")]
    assert chosen[15] == ("code", "+32")
    assert seen[16]["focus"] == "search" and seen[17]["found"] == "2 found"
    assert (chosen[18], seen[18]["found"]) == (("code", "+0"), "1 of 2")
    assert (chosen[19], seen[19]["found"]) == (("code", "+12"), "2 of 2")
    assert [one["function"] for one in seen[20:22]] == [1, 0]
    assert [one["visible"] for one in seen[22:24]] == [9, 9]  # all of it ran, or is unknown
    assert seen[24]["help"]
    assert seen[25]["width"] < seen[24]["width"]


def test_a_screenshot_shows_all_three_panes(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(annotated_html([annotated()], "made"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=900,500"]
    subprocess.run(
        [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}",
         page.as_uri()],
        capture_output=True, timeout=240, check=True,
    )  # fmt: skip
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 10_000
