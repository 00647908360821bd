"""What the kinst and inlinecall commands do about errors: one line, and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from kinst.core.errors import KinstError


class UsageError(KinstError):
    """The command line itself is wrong: exit status 2, as dtrace(1)."""


def guarded(
    work: Callable[[], int],
    name: str,
    usage: str,
    say: Callable[[str], None],
    complain: Callable[[KinstError], None],
) -> int:
    """The exit status of the command `name`, which `work` returns or an error of it makes.

    say: prints a message.  complain: says what is wrong.  usage: told after a wrong command line.
    Every error that a user can cause becomes one line; KINST_TRACEBACK lets a defect through.
    """
    try:
        return work()
    except UsageError as error:
        complain(error)
        say(usage.removesuffix("\n"))
        return 2
    except KinstError as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        say(f"{name}: interrupted")
        return 1
    except BrokenPipeError:
        # Whoever read our output is gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("KINST_TRACEBACK"):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        say(f"{name}: a defect of kinst: {type(error).__name__}: {error} at {place}"
            " (KINST_TRACEBACK=1 shows more)")  # fmt: skip
        return 1
