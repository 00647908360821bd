"""The distinct instruction forms of a riscv64 kernel, and how often each occurs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kinst.core.isa import Isa
from tests.isa.kernel_text import NUMBER, Form, Text, extents

_REGISTER = re.compile(r"\b(zero|ra|sp|gp|tp|[ast]\d+|f[ast]?\d+)\b")
_NAMED = frozenset(("zero", "ra", "sp", "t0", "t1"))  # operands that relocation treats specially


def _class(match: re.Match[str]) -> str:
    name = match.group(0)
    return name if name in _NAMED else "f" if name[0] == "f" else "x"


@dataclass(frozen=True)
class Forms:
    """Forms of a kernel.

    Attributes:
        forms: one example of each.
        unsafe: how many instructions Isa.unsafe names.
        functions: how many functions were decoded.
    """

    forms: list[Form]
    unsafe: dict[str, int]
    functions: int


def riscv64_forms(text: Text, isa: Isa, step: int) -> Forms:
    """Return forms of every `step`th function, which must decode wholly."""
    found: dict[str, Form] = {}
    keys: dict[str, str] = {}
    reasons: dict[str, int] = {}
    functions = list(extents(text))[::step]
    for start, end in functions:
        at = start
        known = list(isa.decode(text.code[start - text.address : end - text.address], start))
        unsafe = isa.unsafe(known)
        for reason in unsafe.values():
            reasons[reason] = reasons.get(reason, 0) + 1
        for one in known:
            assert one.address == at
            at = one.end
            if one.address in unsafe:
                continue
            name = one.text
            if name.startswith(".insn"):
                name = f".insn {int.from_bytes(one.code, 'little') & 0xFE00707F:x}h"
            key = keys.get(name)
            if key is None:
                short = NUMBER.sub("N", _REGISTER.sub(_class, name))
                key = keys[name] = f"{short} ({one.size})"
            form = found.get(key)
            if form is None:
                form = found[key] = Form(key, one.address, one.code, one.text)
            form.count += 1
            if len(form.others) < 3:
                form.others.append((one.address, one.code))
        assert at == end, f"the kernel's text does not decode at {at:#x}"
    return Forms(list(found.values()), reasons, len(functions))
