"""Arguments in a line of the kernel's events of system calls, for example

    sys_openat(dfd: ffffff9c, filename: 47c100, flags: 42, mode: 180)

Before Linux 7, all numbers are hexadecimal, without a prefix. Since then they are numbers of C,
what a pointer leads to may follow in quotes or parentheses, and open flags have their names:

    sys_openat(dfd: 4294967196, filename: 4784350 "data", flags: O_RDWR|O_CREAT, mode: 0600)
"""

from __future__ import annotations

import re

# include/uapi/asm-generic/fcntl.h. arm64 has other numbers for those of the last line.
_FLAGS = {
    "O_RDONLY": 0, "O_WRONLY": 1, "O_RDWR": 2, "O_CREAT": 0o100, "O_EXCL": 0o200,
    "O_NOCTTY": 0o400, "O_TRUNC": 0o1000, "O_APPEND": 0o2000, "O_NONBLOCK": 0o4000,
    "O_CLOEXEC": 0o2000000,
    "O_DIRECT": 0o40000, "O_LARGEFILE": 0o100000, "O_DIRECTORY": 0o200000, "O_NOFOLLOW": 0o400000,
}  # fmt: skip
_VALUE = re.compile(r"(?:^|, )\w+: ([^\s,]+)")


def numbers_in(text: str, *, of_c: bool) -> list[int]:
    """Return the arguments in the parentheses of a line.

    Args:
        of_c: whether the kernel writes them as C does.
    """
    words = _VALUE.findall(text)
    return [_number(word) for word in words] if of_c else [int(word, 16) for word in words]


def is_of_c(trace: str) -> bool:
    """Return whether the kernel that wrote a trace writes numbers as C does."""
    return bool(re.search(r": sys_\w+\(.*: 0x", trace))


def _number(word: str) -> int:
    if re.fullmatch(r"0[0-7]+", word):
        return int(word, 8)
    return sum(_FLAGS[part] if part in _FLAGS else int(part, 0) for part in word.split("|"))
