"""kinst race: delays at instructions of a guest's kernel, which widen the windows of races.

Tested by tests/cli/commands/test_inject.py and tests/vm/inject/test_race.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinst.api import Option
from kinst.cli.commands.inject import (
    JOBS,
    ONLY,
    OUTPUT,
    RESULTS,
    asked_for,
    check_sweep,
)
from kinst.cli.guard import UsageError
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, option_rows, own_options, parse
from kinst.errors import KinstError

if TYPE_CHECKING:
    from kinst.cli import trying
    from kinst.dlang.vocabulary import d_options
else:
    trying = LaterModule("kinst.cli.trying")
    d_options = LaterModule("kinst.dlang.vocabulary.d_options")

DELAYS = "10ms,1ms,100us"
MOST = 500_000_000  # nanoseconds, the most of chill()
OPTIONS = (
    Option("--at", "OFFSETS", "wait only at these offsets: 0,19 (without it: at each instruction)"),
    Option("--delays", "TIMES", f"how long to wait ({DELAYS})"),
    Option("--on", "CPU", "the CPU that waits (0)"),
    ONLY,
    JOBS,
    RESULTS,
    OUTPUT,
    SHOW_PROGRAM,
)  # fmt: skip
HELP = f"""\
usage: kinst race FUNCTION --delays TIMES -c CMD [kinst's options]

Run CMD again and again in a guest that kinst boots, with two CPUs.  Each time, one CPU waits at one
instruction of FUNCTION (or MODULE:FUNCTION), with interrupts off, the first 100 times that it
executes this instruction; the other CPU goes on.  After that, run CMD without a delay.  Show after
which delays the kernel panicked, hung, oopsed or warned, leaked memory, or CMD failed.  Each of
them is tried again.  CMD must make two CPUs work, and leave the guest as it was.

{option_rows(OPTIONS)}
Can what is checked here change before it is used?
  kinst race mine:mine_read --module ./mine.ko -c 'mine_reader & mine_writer; wait'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst race` and return the exit status: 1 if a fault was found, otherwise 0."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    check_sweep(request, "race", "kinst -w -n 'kinst::F:19 /cpu == 0/ { chill(1000000); }'")
    if len(request.arguments) != 1:
        raise UsageError("kinst race needs one function", "kinst race FUNCTION -c CMD")
    asked = asked_for(words, request, own, 2)
    offsets = [_number("--at", word) for word in own.get("--at", "").split(",") if word]
    delays = [_delay(word) for word in own.get("--delays", DELAYS).split(",")]
    return trying.race(
        asked, request.arguments[0], offsets, delays, _number("--on", own.get("--on", "0"))
    )


def _number(option: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError(f"{option} {text}: not a number")
    return int(text)


def _delay(text: str) -> int:
    """Return the nanoseconds of a time in --delays. Raises UsageError."""
    try:
        time: int = d_options.parse_rate("--delays", text.strip(), 0)
    except KinstError:
        time = 0
    if not 0 < time <= MOST:
        raise UsageError(f"--delays {text}: not a time up to 500ms", DELAYS)
    return time
