"""Run the commands of a page, and put their output below them.

    record_page.py PAGE [NUMBER ...]

The commands are those of the ```console blocks, as tools/page_examples.py reads them.
Numbers choose blocks (from 1). The commands run in the top folder of the repository, with the kinst
of the Python that runs this.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.page_examples import typed_commands
from tools.record_terminal import run

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


def record_block(block: str) -> str:
    """Return a ```console block with new output below each of its commands."""
    parts = []
    for command in (one.text for one in typed_commands(block)):
        shown = run(command).strip("\n")
        parts.append(f"$ {command}\n{shown}\n" if shown else f"$ {command}\n")
        print(parts[-1], end="", flush=True)
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
        # Read and write the page for each block, since a person may edit it meanwhile.
        text = page.read_text()
        block = list(_BLOCK.finditer(text))[number - 1]
        made = f"```console\n{record_block(block[1])}```"
        page.write_text(page.read_text().replace(block[0], made, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
