"""Make pictures: run commands, and write what the terminal shows, or the picture that the command
draws, as docs/pictures/NAME.svg.

    record_terminal.py [NAME ...]

Without a name all pictures are made. The commands run with the kinst of the Python that runs this
tool, in the top folder of the repository, with the kernel that kinst boots by default.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tools.page_examples import page_examples

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/pictures"
WIDTH = 106  # columns
SECONDS = 600  # time limit for a command, on a busy machine

# The lines to type, by picture.  A line that begins with # is shown and not run.
PICTURES = {
    "kinst": [
        "# Which instructions does a function have, and how can each be probed?",
        "kinst -l -v -n 'kinst::__fdget_pos:' | head -n 7",
        "# A register at one instruction of vfs_read(), as a distribution.",
        "kinst -qn 'kinst::vfs_read:19 { @[execname] = quantize(regs[R_RDX]); }' \\\n"
        "    -c 'wc -l /etc/passwd /proc/meminfo'",
        "# The function's own variables, with the names and types of the source.",
        'kinst -qn \'kinst::vfs_read:5 { printf("%d bytes of %s\\n", locals->count,\n'
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
    "diff": [
        "# One command on two kernels: which functions with fd or rmap in their names "
        "does each run?",
        "kinst --json -q -o /tmp/old.json --kernel 6.1 \\\n"
        '    -n \'fbt:vmlinux:*fd*:entry, fbt:vmlinux:*rmap*:entry /execname == "wc"/\n'
        "        { @[probefunc] = count(); }' \\\n"
        "    -c 'wc -l /etc/passwd'",
        "kinst --json -q -o /tmp/new.json --kernel 6.12 \\\n"
        '    -n \'fbt:vmlinux:*fd*:entry, fbt:vmlinux:*rmap*:entry /execname == "wc"/\n'
        "        { @[probefunc] = count(); }' \\\n"
        "    -c 'wc -l /etc/passwd'",
        "kinst diff /tmp/old.json /tmp/new.json || true",
        "# A result and itself.",
        "kinst diff /tmp/old.json /tmp/old.json && echo the same",
    ],
}


# Commands that fill a terminal: the command, for how many seconds it runs, and the keys typed then.
SCREENS = {
    "top": (
        "kinst top -n 'fbt::vfs_*:entry { @[execname, probefunc] = count(); }' \\\n"
        "    -c 'while :; do find /proc /sys >/dev/null; wc /proc/*/maps >/dev/null; done'",
        25.0,
        b"q",
    ),
}
# Pictures that a command of a document draws: the document, and the beginning of the command.
DRAWN = {
    "flame": ("docs/views.md", "kinst flame -o ls.svg"),
    "heat": ("docs/views.md", "kinst plot -o reads.svg"),
    "boot": ("docs/boot.md", "kinst boot -o boot.svg"),
}
_SIZE = (24, WIDTH)  # lines, columns


def run(command: str, folder: Path = ROOT) -> str:
    """Return the output and messages of a shell command, with their line ends unchanged.

    Args:
        command: the command.
        folder: the folder in which it runs.

    Raises:
        CalledProcessError: the command fails.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder, env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL, timeout=SECONDS,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def record(lines: list[str]) -> str:
    """Return an SVG of a terminal in which these lines were typed, with their output."""
    console = _console()
    for line in lines:
        if line.startswith("#"):
            console.print(Text(line, style="italic bright_black"))
            continue
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        shown = run(line).expandtabs().strip("\n")
        print(f"$ {line}\n{shown}")
        console.print(Text(f"{shown}\n"))
    return _picture(console)


def _console() -> Console:
    return Console(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, color_system="truecolor"
    )


def _picture(console: Console) -> str:
    # Without the fonts that rich would fetch from another server.
    code = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="kinst", code_format=code, unique_id="kinst")


def run_on_terminal(command: str, seconds: float, typed: bytes) -> str:
    """Return the last screen that a command drew before it was ended, with its colours.

    Args:
        command: a command that fills the terminal.
        seconds: time from the command's first screen until `typed` is typed.
        typed: keys to type, as bytes.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    child, terminal = pty.fork()
    if not child:
        os.environ |= {"PATH": path, "TERM": "xterm-256color"}
        os.chdir(ROOT)
        os.execvp("bash", ["bash", "-c", command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))
    shown, until = b"", float("inf")
    while True:
        ready, _, _ = select.select([terminal], [], [], 0.2)
        try:
            data = os.read(terminal, 1 << 16) if ready else b""
        except OSError:  # the command has ended
            break
        shown += data if typed else b""
        if until == float("inf") and b"\x1b[?1049h" in shown:
            until = time.monotonic() + seconds
        if typed and time.monotonic() > until:
            os.write(terminal, typed)
            typed = b""
    os.waitpid(child, 0)
    return shown.decode("utf-8", "replace").split("\x1b[H")[-1].replace("\r", "")


def record_screen(command: str, seconds: float, typed: bytes) -> str:
    """Return an SVG of a terminal that a command fills; arguments as for run_on_terminal()."""
    console = _console()
    screen = run_on_terminal(command, seconds, typed)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    console.print(Text.from_ansi(screen))
    return _picture(console)


def draw(document: str, beginning: str) -> str:
    """Return the picture that the command of a document draws with -o FILE.

    Args:
        document: path of the document.
        beginning: beginning of the command.
    """
    typed = [c.text for one in page_examples() if one.document == document for c in one.commands]
    (command,) = (text for text in typed if text.startswith(beginning))
    with TemporaryDirectory() as folder:
        print(run(command, Path(folder)))
        (picture,) = Path(folder).glob("*.svg")
        return picture.read_text()


def made(name: str) -> str:
    """Return the text of a picture."""
    if name in DRAWN:
        return draw(*DRAWN[name])
    return record(PICTURES[name]) if name in PICTURES else record_screen(*SCREENS[name])


def main() -> int:
    every = [*PICTURES, *SCREENS, *DRAWN]
    names = sys.argv[1:] or every
    unknown = [name for name in names if name not in every]
    if unknown:
        print(f"no such picture: {unknown[0]} (there are: {', '.join(every)})")
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        (FOLDER / f"{name}.svg").write_text(made(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
