"""speedscope accepts kinst flame's folded stacks: opened in a browser, saved again by its own menu,
and compared frame by frame."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kinst.events import Aggregation, Frame, Key, Stack
from kinst.views.folded import fold, folded_text

PACKAGE = "speedscope@1.25.0"
CHROMIUM, NPM = shutil.which("chromium"), shutil.which("npm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and NPM), reason="apt install chromium npm"),
]
# The file that it would offer to save goes into the page.
PAGE = """<!DOCTYPE html><html><body><script src="{script}"></script><script>
URL.createObjectURL = (blob) => {{
  blob.text().then((text) => {{
    const saved = document.createElement("pre");
    saved.id = "saved";
    saved.textContent = text;
    document.body.appendChild(saved);
  }});
  return "blob:none";
}};
setInterval(() => {{
  if (!document.getElementById("saved"))
    window.dispatchEvent(new KeyboardEvent("keydown", {{ key: "s", ctrlKey: true }}));
}}, 1000);
</script></body></html>"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its page and scripts."""
    folder = tmp_path_factory.mktemp("speedscope")
    words = [str(NPM), "pack", "--silent", PACKAGE]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot fetch {PACKAGE}")
    subprocess.run(["tar", "xzf", done.stdout.strip()], cwd=folder, check=True)
    return folder / "package/dist/release"


def saved_by_speedscope(release: Path, text: str) -> dict[str, list[dict[str, object]]]:
    """Return the profile as speedscope saves it (its file-format-schema.json)."""
    data = base64.b64encode(text.encode()).decode()
    profile = release / "profile.js"
    profile.write_text(f"speedscope.loadFileFromBase64('stacks.txt', '{data}')")
    (script,) = release.glob("speedscope-*.js")
    page = release / "page.html"
    page.write_text(PAGE.format(script=script.name))
    words = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader",
        "--allow-file-access-from-files", "--virtual-time-budget=30000", "--dump-dom",
        f"file://{page}#localProfilePath={profile}",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    saved = re.search(r'<pre id="saved">([^<]*)</pre>', done.stdout)
    assert saved, done.stdout[:2000]
    found: dict[str, list[dict[str, object]]] = json.loads(html.unescape(saved[1]))
    return found


def test_stacks_and_values_come_back(release: Path) -> None:
    frames = [Frame(k, "vmlinux", f"function_{k}", inlined=k == 2) for k in range(6)]
    rows: dict[Key, int] = {
        ("cat", Stack("kernel", (frames[3], frames[1], frames[0]))): 7,
        ("cat", Stack("kernel", (frames[2], frames[1], frames[0]))): 2,
        ("a <b> & c", Stack("kernel", (frames[5], frames[4]))): 11,
    }
    folded = fold(Aggregation("", "count", ("string", "stack"), rows))
    saved = saved_by_speedscope(release, folded_text(folded))
    names = [frame["name"] for frame in saved["shared"]["frames"]]  # type: ignore[call-overload]
    (profile,) = saved["profiles"]
    found: dict[tuple[str, ...], int] = {}
    open_: list[str] = []
    at = 0
    for event in profile["events"]:  # type: ignore[attr-defined]
        if event["at"] > at and open_:
            found[tuple(open_)] = found.get(tuple(open_), 0) + event["at"] - at
        at = event["at"]
        if event["type"] == "O":
            open_.append(names[event["frame"]])
        else:
            assert open_.pop() == names[event["frame"]]
    assert found == {one.frames: one.value for one in folded}
    assert profile["endValue"] == sum(rows.values())
