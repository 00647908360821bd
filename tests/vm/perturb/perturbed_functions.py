"""Functions that the tests of this folder change, and their registers."""

from __future__ import annotations

import re

from tests.vm.command import Row
from tests.vm.isa_guest import Guest

COUNT = {"amd64": "R_RDX", "arm64": "R_X2", "riscv64": "R_A2"}  # third argument
RESULT = {"amd64": "R_RAX", "arm64": "R_X0", "riscv64": "R_A0"}
# What sets the result of read_null() to 0.
NONE = re.compile(r"xor eax, eax|mov [xw]0, (#0|[xw]zr)|(c\.)?li a0, 0x?0?")


def setting_of_result(guest: Guest) -> Row:
    """Return the instruction of read_null() that sets its result."""
    rows = guest.rows(["read_null"])["read_null"]
    return next(row for row in rows if NONE.fullmatch(row.text))
