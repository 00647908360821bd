"""Write docs/decisions/README.md, the list of the decisions, from the first line of each decision.

decision_index.py           write the file
decision_index.py --check   exit with status 1 if the file is outdated
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs/decisions"

HEAD = """\
# Decisions

Each page says what the situation was, what was decided, why, and what it costs. `Where` names the
modules, below `kinst/`, whose docstrings say more. A decision that no longer holds is not deleted:
a newer one replaces it. The list is written by `tools/decision_index.py`.

"""


def decisions() -> list[Path]:
    """Return the files of docs/decisions/ named NNNN-title.md, in order of their numbers."""
    return sorted(FOLDER.glob("[0-9]*.md"))


def index() -> str:
    """Return the text of docs/decisions/README.md."""
    rows = []
    for path in decisions():
        number, _, title = path.read_text().split("\n")[0].removeprefix("# ").partition(". ")
        rows.append(f"{number}. [{title}]({path.name})\n")
    return HEAD + "".join(rows)


def main() -> int:
    page = FOLDER / "README.md"
    if "--check" in sys.argv[1:]:
        return int(not page.exists() or page.read_text() != index())
    page.write_text(index())
    return 0


if __name__ == "__main__":
    sys.exit(main())
