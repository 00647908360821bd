"""Every example of the documents and of --help, as it stands: it runs, ends within three minutes of
CPU time, and prints lines such as the document shows.

tools/page_examples.py finds the examples.  A shell runs each in a folder that has what a reader
has: a kernel as bzImage and vmlinux, the folder of examples, the program files that the page shows.
SKIPPED has the reasons for which an example cannot run here, each with the rule by which it is
recognised.  Numbers in output differ from run to run, so lines are compared without them.

`make test` runs those in FEW.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests import ROOT
from tests.vm.attach.attach_guest import AttachGuest, attach_guest
from tests.vm.guests.test_warm_examples import masked
from tools.page_examples import PageCommand, PageExample, page_examples

# Of CPU time, for a command that is to end within a minute on an idle machine: `kinst boot` took
# 50 s on a busy one, and some machines are slower.
SECONDS = 180.0
PATIENCE = 300.0  # for a command, of real time
MOST_SKIPPED = 0.3  # part of all commands

SKIPPED = {
    r"--live|dkms": "it traces this very machine, as root (tests/vm/live)",
    r"--build|--source|--initrd|qemu-system|--debug copies": "a kernel, disk or file of the reader",
    r"--copy|\bmy[-_]|\bCMD\b|\./program|f_4290|mine\.ko": "a program or module of the reader",
    r"-p 4242": "a process of the reader (tests/machines/process/test_running.py)",
    r"batch=": "the whole kernel, a batch of ten seconds after another",
    r"<TAB>|completion zsh": "keys in a shell (tests/cli/test_completion_shells.py)",
    r" \.\.\.(\s|$)": "a pattern, not a command",
    r"bitcount\(": "a subroutine that the page adds (tests/test_extending.py)",
    r"uname -r": "debug information of this machine's own kernel",
}
MOST_FEW = 8
LIBRARY = re.search(
    r"`files\.d`:\n\n```d\n(.*?)^```$", (ROOT / "docs/extending.md").read_text(), re.M | re.S
)
assert LIBRARY is not None
# Files of the reader's project.
OWN_FILES = {
    "files.d": LIBRARY[1],
    "file": "some text\n" * 500,
    "Makefile": "check:\n\t@cat /proc/version\n",
    "tests/reads.d": (ROOT / "examples/tests/reads.d").read_text(),
    "tests/test_one.py": "import unittest\n\n\nclass T(unittest.TestCase):\n"
    "    def test(self):\n        self.assertTrue(open('/proc/version').read())\n",
}
# Commands of which each run takes another path through the kernel: names are masked, too.
VARYING = r"kinst flow|tree\.txt"
FAILS = r"^kinst: failed"  # a line of output that says that the command failed
DIFFERS = r"kinst diff"  # commands with status 1 if what they compare is different
# Examples that `make test` runs, by a part of their text.
FEW = ("--kernel bzImage --debug", "%s reads %d bytes to", "kprobe:vfs_read", "6 * 7", "read:0' -c")


@dataclass(frozen=True)
class Keys:
    """What a reader types while an example runs.

    Attributes:
        after: a regular expression for output after which the keys are typed.
        keys: the keys.
    """

    after: str
    keys: bytes


KEYS = {
    r"kinst top": Keys(r"\x1b\[\?1049h", b"q"),
    r"--shell": Keys(r"matched[^#]*# ", b"exit\n"),
    r"--attach": Keys(r"matched", b"\x03"),
}


@dataclass(frozen=True)
class Ran:
    """A command of an example that has run.

    Attributes:
        output: what it wrote on standard output and standard error.
        seconds: how long it took; if that is less, the CPU time of all its processes.
    """

    command: PageCommand
    status: int
    output: str
    seconds: float


def reason(command: PageCommand) -> str:
    """Return why a command cannot run here; "" if it can."""
    return next((why for rule, why in SKIPPED.items() if re.search(rule, command.text)), "")


def runnable(example: PageExample) -> list[PageCommand]:
    """Return the commands of an example that can run here.

    Commands below which output is shown are steps of one session: all can run, or none.
    """
    left = [one for one in example.commands if not reason(one)]
    steps = any(one.output is not None for one in example.commands)
    return [] if steps and len(left) < len(example.commands) else left


EXAMPLES = page_examples()


def plain(command: PageCommand) -> str:
    """Return a command without the comment that follows it."""
    return re.sub(r"\s+# .*", "", command.text)


# The first example with each command.
FIRST: dict[str, PageExample] = {}
for _one in EXAMPLES:
    for _command in runnable(_one):
        FIRST.setdefault(plain(_command), _one)


def to_type(example: PageExample) -> list[PageCommand]:
    """Return the commands of an example that can run here, without those at its beginning that an
    earlier example has, too, if the document shows no output of them."""
    left = runnable(example)
    while left and left[0].output is None and FIRST[plain(left[0])] != example:
        left = left[1:]
    return left


TYPED = {str(one): one for one in EXAMPLES if to_type(one)}


def furnish(folder: Path, example: PageExample, prepared: Prepared) -> None:
    """Put what a reader of a document has into a folder."""
    files = {"bzImage": prepared.kernel, "vmlinux": prepared.debug, "examples": ROOT / "examples"}
    for name in re.findall(r"\bown/\S+", example.text):
        files[name] = prepared.debug if "/debug/" in name else prepared.kernel
    files |= dict.fromkeys(("reads.d", "writes.d"), ROOT / "examples/tests/reads.d")
    if "-s values.d" in example.text:
        page = (ROOT / example.document).read_text()
        (folder / "values.d").write_text(page.split("```d\n")[1].split("```")[0])
    for name, text in OWN_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "results").mkdir()
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(path)


def shell_script(commands: list[PageCommand]) -> str:
    """Return a script that runs commands in one shell. After each command it writes 0x1e to its
    output, and a line with the status, the time and the CPU times to file descriptor 9."""
    text = "echo 0 $EPOCHREALTIME >&9; times >&9\n"
    for one in commands:
        text += (
            f"{{ {one.text}\n}}\n"
            "s=$?; echo $s $EPOCHREALTIME >&9; times >&9; printf '\\x1e'; (exit $s)\n"
        )
    return text


def measured(log: str) -> list[tuple[int, float, float]]:
    """Return (status, time, CPU time of all processes) of each line of the script's log."""
    rows = re.findall(r"^(\d+) ([\d.]+)\n.*\n(.*)\n", log, re.M)
    found = []
    for status, at, children in rows:
        parts = re.findall(r"(\d+)m([\d.]+)s", children)
        cpu = sum(60 * int(minutes) + float(rest) for minutes, rest in parts)
        found.append((int(status), float(at), cpu))
    return found


class Session:
    """A shell that runs an example in a folder."""

    def __init__(self, folder: Path, commands: list[PageCommand], keys: Keys | None) -> None:
        self._folder, self._commands, self._keys = folder, commands, keys
        self._log = folder / ".log"
        self._log.touch()
        here = Path(sys.executable).parent
        self._environment = os.environ | {
            "PATH": f"{here}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color", "COLUMNS": "100",
        }  # fmt: skip

    def run(self, meanwhile: Callable[[], object]) -> list[Ran]:
        """Run the commands, and return them with their results.

        Args:
            meanwhile: called before keys are typed.
        """
        script = f"exec 9>{self._log}\n{shell_script(self._commands)}"
        output = self._on_terminal(script, meanwhile) if self._keys else self._on_pipe(script)
        rows = measured(self._log.read_text())
        outputs = output.split("\x1e")
        found = []
        for k, command in enumerate(self._commands[: len(rows) - 1]):
            (_, began, cpu_before), (status, ended, cpu) = rows[k], rows[k + 1]
            found.append(Ran(command, status, outputs[k], min(ended - began, cpu - cpu_before)))
        assert len(found) == len(self._commands), f"not all have ended: {output}"
        return found

    def _on_pipe(self, script: str) -> str:
        with subprocess.Popen(
            ["bash", "-c", script], cwd=self._folder, env=self._environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, errors="replace",
        ) as shell:  # fmt: skip
            try:
                return shell.communicate(timeout=PATIENCE * len(self._commands))[0]
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)
                return shell.communicate()[0]

    def _on_terminal(self, script: str, meanwhile: Callable[[], object]) -> str:
        assert self._keys is not None
        pid, terminal = pty.fork()
        if not pid:
            os.chdir(self._folder)
            os.execvpe("bash", ["bash", "-c", script], self._environment)
        output, typed_at = "", 0
        end = time.monotonic() + PATIENCE * len(self._commands)
        while time.monotonic() < end:
            ready, _, _ = select.select([terminal], [], [], 0.2)
            try:
                data = os.read(terminal, 1 << 16) if ready else b""
            except OSError:  # the shell has ended
                break
            output += data.decode("utf-8", "replace").replace("\r", "")
            if re.search(self._keys.after, output[typed_at:]):
                typed_at = len(output)
                meanwhile()
                time.sleep(2.0)  # a reader looks
                os.write(terminal, self._keys.keys)
        else:
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return output


def without_source(text: str) -> str:
    """Return the output of kinst annotate without its column of source: the text of the source may
    not be installed. Other text is returned as it is."""
    head = re.search(r"^(count +share.* )source$", text, re.M)
    if head is None:
        return text
    rows = [line[: len(head[1])] for line in text[head.start() :].splitlines()]
    return text[: head.start()] + re.sub(r"-{5,}", "-----", "\n".join(rows))


def missing_lines(shown: str, printed: str, *, varies: bool) -> tuple[set[str], set[str]]:
    """Return masked lines that a document shows and a command has not printed, and lines that it
    has printed and the document does not show.

    A document may leave out lines (it shows ... instead), messages on standard error, and spaces.

    Args:
        shown: output in the document.
        printed: output of the command.
        varies: whether names vary, too.
    """

    def forms(text: str) -> set[str]:
        lines = masked(re.sub(r"^CPU .*$", "", without_source(text), flags=re.M))
        lines -= {"..."}
        if not varies:
            return lines
        lines = {re.sub(r": the (only|first) .*", "", line) for line in lines}
        words = {re.sub(r"[A-Za-z_][\w.]*", "W", line) for line in lines}
        return {re.sub(r"\bW\(.*|\[W\]|= .*|W$|[µN. ]", "", line) for line in words}

    there, wanted = forms(printed), forms(shown)
    extra = there - wanted if not re.search(r"^\.\.\.$", shown, re.M) and not varies else set()
    return wanted - there, {line for line in extra if not re.match(r"(kinst|dtrace): ", line)}


def complaints(ran: Ran) -> list[str]:
    """Return what is wrong with a run."""
    shown, wrong = ran.command.output or "", []
    fails = re.search(FAILS, shown, re.M)
    if ran.status and not (fails or re.search(DIFFERS, ran.command.text)):
        wrong.append(f"status {ran.status}")
    if ran.seconds > SECONDS:
        wrong.append(f"{ran.seconds:.0f} seconds")
    if shown.strip():
        varies = bool(re.search(VARYING, ran.command.text))
        missing, extra = missing_lines(shown, ran.output, varies=varies)
        wrong += [f"not printed: {line}" for line in sorted(missing)]
        wrong += [f"not in the document: {line}" for line in sorted(extra)]
    return [ran.command.text, *wrong, ran.output[-3000:]] if wrong else []


def in_few(example: PageExample) -> bool:
    """Return whether `make test` runs an example."""
    return any(part in example.text for part in FEW)


def _parameters() -> list[object]:
    return [
        pytest.param(one, id=name, marks=pytest.mark.main_job if in_few(one) else pytest.mark.full)
        for name, one in TYPED.items()
    ]


@pytest.mark.parametrize("example", _parameters())
def test_example(example: PageExample, prepared: Prepared, tmp_path: Path, reads: Path) -> None:
    wrong = typed(example, prepared, tmp_path / "first", reads)
    if wrong:  # a record may come in the middle of a line that the guest's command prints
        wrong = typed(example, prepared, tmp_path / "second", reads)
    assert not wrong, "\n".join(wrong)


def typed(example: PageExample, prepared: Prepared, place: Path, reads: Path) -> list[str]:
    """Type an example in a folder that is made at `place`; return what is wrong with it."""
    folder = place / "reader"
    folder.mkdir(parents=True)
    furnish(folder, example, prepared)
    commands = to_type(example)
    keys = next((one for rule, one in KEYS.items() if re.search(rule, example.text)), None)
    if "--attach" not in example.text:
        runs = Session(folder, commands, keys).run(lambda: None)
    else:
        guest_folder = place / "guest"
        guest_folder.mkdir()
        with attach_guest("pc", prepared, reads, guest_folder) as guest:
            runs = Session(folder, to_guest(commands, guest), keys).run(
                lambda: guest.run("wc -l /proc/version")
            )
    print(*(f"{ran.seconds:.1f} s  {ran.command.text}" for ran in runs), sep="\n")
    return [line for ran in runs for line in complaints(ran)]


def to_guest(commands: list[PageCommand], guest: AttachGuest) -> list[PageCommand]:
    """Return commands that attach to this guest, not to the only one of this machine: tests that
    run at the same time have guests, too."""
    return [
        PageCommand(one.text.replace("--attach auto", f"--attach {guest.pid}"), one.output)
        for one in commands
    ]


def test_few_are_skipped_and_each_rule_is_needed() -> None:
    every = [command for one in EXAMPLES for command in one.commands]
    for rule in SKIPPED:
        assert any(re.search(rule, one.text) for one in every), rule
    run = sum(len(runnable(one)) for one in EXAMPLES)
    assert len(every) > 100 and run >= (1 - MOST_SKIPPED) * len(every)
    for part in FEW:
        assert any(part in one.text for one in TYPED.values()), part
    assert sum(map(in_few, TYPED.values())) <= MOST_FEW


def test_what_is_missing() -> None:
    shown = "  wc    2\n  ls    17\n"
    assert missing_lines(shown, "ls 3\n wc 20\nkinst: a guest is booted\n", varies=False) == (
        set(), set(),
    )  # fmt: skip
    assert missing_lines(shown, "wc 2\ncat 3\n", varies=False) == ({"ls N"}, {"cat N"})
    assert missing_lines("wc 2\n...\n", "wc 2\ncat 3\n", varies=False) == (set(), set())
