"""Run the commands of a page, and put their output below them.

    record_page.py PAGE [NUMBER ...]

A command is a line that begins with "$ " in a ```console block, with the lines that a backslash or
an open quote continues; its output is what follows, up to the next command or the end of the block.
Numbers choose blocks (from 1). The commands run in the top folder of the repository, with the kinst
of the Python that runs this.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from tools.record_terminal import run

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


def record_block(block: str) -> str:
    """Return a ```console block with new output below each of its commands."""
    parts = []
    for command in typed(block):
        shown = run(command).strip("\n")
        parts.append(f"$ {command}\n{shown}\n" if shown else f"$ {command}\n")
        print(parts[-1], end="", flush=True)
    return "".join(parts)


def typed(block: str) -> list[str]:
    """Return the commands of a ```console block."""
    commands: list[str] = []
    open_ = False
    for line in block.splitlines():
        if open_:
            commands[-1] += f"\n{line}"
        elif line.startswith("$ "):
            commands.append(line.removeprefix("$ "))
        else:
            continue
        try:
            shlex.split(commands[-1])
            open_ = line.endswith("\\")
        except ValueError:  # a quote is open, or nothing follows the backslash
            open_ = True
    return commands


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    page = Path(sys.argv[1])
    chosen = {int(word) for word in sys.argv[2:]}
    for number in range(1, len(_BLOCK.findall(page.read_text())) + 1):
        if chosen and number not in chosen:
            continue
        # Read and write the page for each block, since a person may edit it meanwhile.
        text = page.read_text()
        block = list(_BLOCK.finditer(text))[number - 1]
        made = f"```console\n{record_block(block[1])}```"
        page.write_text(page.read_text().replace(block[0], made, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
