"""Frame of kinst's self-contained HTML pages: styles, a body, data and a script.

Tested by tests/views/test_annotated_html.py and tests/views/test_coverage_html.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any


def interactive_page(
    command: str, name: str, title: str, parts: Mapping[str, str], data: Any, notice: str = ""
) -> str:
    """Return the text of a self-contained HTML page.

    Args:
        command: name of the kinst command, for the window's title.
        name: name of the page's files in this folder: NAME.html (the body), NAME.css and NAME.js.
        title: what was traced.
        parts: HTML for each {{KEY}} in the body, by key.
        data: values that the page's script gets as JSON.
        notice: a sentence to show above the panes; "" for none.
    """
    # "</" would end the script that contains the data.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    filled = {
        "COMMAND": command,
        "STYLE": _read("page.css") + _read(f"{name}.css"),
        "BODY": _read(f"{name}.html").rstrip("\n"),
        "TITLE": escape(title),
        "NOTICE": f'<p id="notice">{escape(notice)}</p>\n' if notice else "",
        "SCRIPT": _read(f"{name}.js"),
        **parts,
        "DATA": text,
    }
    page = _read("page.html")
    for key, part in filled.items():
        page = page.replace(f"{{{{{key}}}}}", part)
    return page


def _read(name: str) -> str:
    return files("kinst.views").joinpath(name).read_text(encoding="utf-8")
