"""Record a terminal: run commands for real, and write what they show as docs/pictures/NAME.svg.

    record_terminal.py [NAME ...]

Without a name every picture is made.  The commands run with the kinst of the Python that runs
this, in the top folder of the repository, with the kernel that kinst boots.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/pictures"
WIDTH = 106  # columns
SECONDS = 600  # for one command, on a busy machine

# What is typed, by picture.  A line that begins with # is shown and not run.
PICTURES = {
    "kinst": [
        "# Which instructions does a function have, and how can each be probed?",
        "kinst -l -v -n 'kinst::__fdget_pos:' | head -n 7",
        "# A register at one instruction of vfs_read(), as a distribution.",
        'kinst -qn \'kinst::vfs_read:19 /execname != "init"/ '
        "{ @[execname] = quantize(regs[R_RDX]); }' \\\n"
        "    -c 'wc -l /etc/passwd /proc/meminfo'",
        "# The function's own variables, with the names and types of the source.",
        'kinst -qn \'kinst::vfs_read:5 /execname == "wc"/ '
        '{ printf("%d bytes of %s\\n", locals->count,\n'
        "    stringof(locals->file->f_path.dentry->d_name.name)); }' -c 'wc -l /proc/meminfo'",
        "# An inline function, wherever the compiler has put it.",
        "kinst -qn 'kinst::fdget_pos:entry { @[probefunc, probename] = count(); }\n"
        "    END { printa(\"%s+%s: %@d\\n\", @); }' -c 'wc -l /etc/passwd'",
    ],
    "test": [
        "# A test file whose assertions hold.",
        "kinst test examples/tests/reads.d",
        "# One with an assertion that does not.",
        "tail -n 3 examples/tests/one_read.d",
        "! kinst test examples/tests/one_read.d",
    ],
    "cover": [
        "# How much of these two files does cat run?",
        "kinst cover fs/open.c fs/read_write.c -o /tmp/cat.info -c 'cat /proc/version'",
        "lcov --rc lcov_branch_coverage=1 --summary /tmp/cat.info",
        "# What does writing a file reach that this has not?",
        "kinst cover -q fs/read_write.c --since /tmp/cat.info -c 'echo >/tmp/new'",
    ],
}


def run(command: str) -> str:
    """What a shell command prints, messages too, with the ends of its lines as they come.

    Raises CalledProcessError when it fails.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=ROOT, env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL, timeout=SECONDS,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def record(lines: list[str]) -> str:
    """The picture, an SVG, of a terminal in which these lines were typed."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, color_system="truecolor"
    )
    for line in lines:
        if line.startswith("#"):
            console.print(Text(line, style="italic bright_black"))
            continue
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        shown = run(line).expandtabs().strip("\n")
        print(f"$ {line}\n{shown}")
        console.print(Text(f"{shown}\n"))
    # Without the fonts that rich would fetch from a server of somebody else's.
    code = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="kinst", code_format=code, unique_id="kinst")


def main() -> int:
    names = sys.argv[1:] or list(PICTURES)
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        print(f"no such picture: {unknown[0]} (there are: {', '.join(PICTURES)})")
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        (FOLDER / f"{name}.svg").write_text(record(PICTURES[name]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
