"""C preprocessor of the host, which -C runs on D scripts before they are parsed (dtrace(1), "-C").

Tested by tests/d/scripting.cases.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from kinst.core.errors import KinstError

CPP = "cpp"
# Macros that libdtrace defines (dt_preproc() in dt_cc.c): a D compiler, and its version 1.13.
PREDEFINED = ("-D__SUNW_D=1", "-D__SUNW_D_VERSION=0x010d0000")
# D is not GNU C: with these, the headers of Linux and glibc use standard C only.
PLAIN = (
    "-U__GNUC__",
    "-D__extension__=",
    "-D__signed__=signed",
    "-D__const=const",
    "-D__volatile__=volatile",
    "-D__inline__=inline",
    "-D__inline=inline",
    "-D__builtin_va_list=void *",
)
SECONDS = 60


def preprocess(
    text: str,
    file: str,
    arguments: Sequence[str],
    say: Callable[[str], None] | None = None,
    program: str = "",
) -> str:
    """Run the C preprocessor on a D script, and return its output, with line markers.

    Args:
        text: the script.
        file: the script's path, for messages and relative #include.
        arguments: -D, -U, -I and -H as the user gave them.
        say: called with the preprocessor's messages (-H).
        program: the preprocessor (option cpppath); "" means cpp.

    Raises KinstError if there is no preprocessor, or it finds errors.
    """
    if text.startswith("#!"):
        text = "//" + text  # keeps the line's number; the preprocessor removes the comment
    folder = Path(file).parent if Path(file).is_file() else Path.cwd()
    program = program or CPP
    options = ("-iquote", str(folder), *arguments)
    command = [program, "-x", "c", *PREDEFINED, *PLAIN, *options, "-"]
    source = f'# 1 "{file}"\n{text}'.encode("utf-8", "surrogateescape")
    try:
        done = subprocess.run(
            command, input=source, capture_output=True, check=False, timeout=SECONDS
        )
    except FileNotFoundError:
        raise KinstError(
            "-C needs a C preprocessor", f"there is no {program} on this machine"
        ) from None
    except OSError as error:
        raise KinstError(f"failed to run {program}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise KinstError(f"{file}: the C preprocessor did not end in {SECONDS} s") from None
    told = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode:
        first = next((line for line in told.splitlines() if "error" in line), "it failed")
        raise KinstError(f"{file}: the C preprocessor found errors: {first}")
    if told and say is not None:
        say(told)
    return done.stdout.decode("utf-8", "surrogateescape")
