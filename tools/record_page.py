"""Run the commands of a page for real and put what they print below them.

    record_page.py PAGE [NUMBER ...]

A command is a line that begins with "$ " in a ```console block, with the lines that a backslash
continues; what follows, to the next command or the end of the block, is its output.  Numbers
choose blocks (from 1).  The commands run in the top folder of the repository, with the kinst of
the Python that runs this.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.record_terminal import run

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
_COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*$", re.M)


def record_block(block: str) -> str:
    """The block with the output of each of its commands made anew."""
    parts = []
    for match in _COMMAND.finditer(block):
        shown = run(match[0].removeprefix("$ ")).strip("\n")
        print(f"{match[0]}\n{shown}", flush=True)
        parts.append(f"{match[0]}\n{shown}\n" if shown else f"{match[0]}\n")
    return "".join(parts)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    page = Path(sys.argv[1])
    chosen = {int(word) for word in sys.argv[2:]}
    for number in range(1, len(_BLOCK.findall(page.read_text())) + 1):
        if chosen and number not in chosen:
            continue
        # The page is read and written for each block: it may be edited while this runs.
        text = page.read_text()
        block = list(_BLOCK.finditer(text))[number - 1]
        made = f"```console\n{record_block(block[1])}```"
        page.write_text(page.read_text().replace(block[0], made, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
