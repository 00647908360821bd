"""Programs that a machine, or the room that options give, cannot run: the error gives the
reason."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.compile import ProgramEntries, compile_host
from kinst.core.dtypes import UINT64
from kinst.core.errors import KinstError
from kinst.core.system import Access, UserMemory
from kinst.dlang import typed as t
from tests.codegen.codegen_rig import (
    BASE,
    BUILTINS,
    CURRENT_AT,
    RIGS,
    SPAN,
    HostRig,
    Rig,
    TargetRig,
    integer,
    program,
    scratch,
    trace,
)
from tests.codegen.helpers.test_memory_access import READ
from tests.codegen.subroutines_rig import compiled

both = pytest.mark.parametrize("kind", RIGS)


def made(kind: type[Rig], body: str, declared: str = "", **sizes: int) -> Rig:
    text = compiled(f"{declared} kinst::f:0 {{ {body} }}")
    return kind(text, {7: (0,)}, strsize=64, scratch=scratch(**sizes))


def machine_with(**fields: object) -> type[TargetRig]:
    class Changed(TargetRig):
        def target_machine(self) -> CodeMachine:
            return replace(super().target_machine(), **fields)  # type: ignore[arg-type]

    return Changed


WITHOUT_THREAD = {name: access for name, access in BUILTINS.items() if name != "curthread"}


@pytest.mark.parametrize(
    ("fields", "body", "said"),
    [
        (
            {"builtins": WITHOUT_THREAD},
            "self->x = 1;",
            "thread-local variables .self->. cannot be used",
        ),
        (
            {"builtins": BUILTINS | {"cpu": Access(CURRENT_AT, (0x20,), 16, string=True)}},
            "trace(1);",
            "the value of the built-in cpu is text, not a number",
        ),
        ({}, "trace(cwd);", "paths of files are not available"),
        ({}, "trace(d_path((struct path *)arg0));", "paths of files are not available"),
        ({"user": UserMemory(READ, 0)}, 'copyoutstr("a", 5, 2);', "memory cannot be written"),
        ({}, "trace(*(char *)copyin(5, 1));", "memory cannot be read"),
        ({}, "trace(progenyof(1));", "where this kernel keeps the parent"),
        ({"timestamp_asm": ""}, "trace(1);", "the clock of this kernel is not known"),
    ],
)
def test_kernels_that_lack_something(fields: dict[str, object], body: str, said: str) -> None:
    declared = "struct path;" if "struct path" in body else ""
    with pytest.raises(KinstError, match=said):
        made(machine_with(**fields), body, declared)


@both
def test_no_such_register(kind: type[Rig]) -> None:
    read = t.RegisterRead(UINT64, SPAN, integer(99))
    with pytest.raises(KinstError, match=r"there is no regs\[99\]"):
        kind(program([trace(read)]), {1: (0,)})


@both
def test_room_to_the_last_byte(kind: type[Rig]) -> None:
    """int x[n] is 4 n bytes."""
    made(kind, "x[5] = 1;", "int x[2048];", globals_size=8192)
    with pytest.raises(KinstError, match=r"globals need 8200 bytes, scratch has 8192"):
        made(kind, "x[5] = 1;", "int x[2049];", globals_size=8192)
    words = "".join(f'trace("{k:063}");' for k in range(64))
    made(kind, words, strings_size=4096, ring_size=8192)
    with pytest.raises(KinstError, match=r"strings need 4098 bytes, scratch has 4096"):
        made(kind, words + 'trace("x");', strings_size=4096, ring_size=8192)
    # A header of 24 bytes and 64 words.
    words = "".join("trace(regs[R_1]);" for _ in range(509))
    made(kind, words, ring_size=4096)
    with pytest.raises(KinstError, match="a record of 4104 bytes does not fit the buffer of 4096"):
        made(kind, words + "trace(regs[R_1]);", ring_size=4096)


@both
def test_aggregations_to_the_last_byte(kind: type[Rig]) -> None:
    """quantize() has 127 words and an entry begins with one; a key is another one."""
    made(kind, "@ = quantize(arg0);", agg_size=1024)
    with pytest.raises(KinstError, match="need 1024 bytes for each CPU, aggsize is 1023"):
        made(kind, "@ = quantize(arg0);", agg_size=1023)
    made(kind, "@[arg1] = quantize(arg0);", agg_size=1032)
    with pytest.raises(KinstError, match="@ needs entries of 1032 bytes, aggsize 1031 leaves 1031"):
        made(kind, "@[arg1] = quantize(arg0);", agg_size=1031)
    for text, size in (("@ = quantize(arg0);", 7), ("@[arg1] = quantize(arg0);", 100),
                       ("@ = quantize(arg0); @a[arg1] = quantize(arg0); @b[arg1] = sum(1);", 1025),
                       ("@a[arg1] = quantize(arg0); @b[arg2] = count();", 300)):  # fmt: skip
        with pytest.raises(KinstError) as refused:
            made(kind, text, agg_size=size)
        said = re.search(r"-x aggsize=(\d+)", refused.value.hint)
        assert said is not None
        made(kind, text, agg_size=int(said[1]))  # the error's advice works
    made(kind, "@a[arg1] = quantize(arg0); @b[arg1] = count();", agg_size=2064)
    with pytest.raises(KinstError, match="@a needs entries of 1032 bytes"):
        made(kind, "@a[arg1] = quantize(arg0); @b[arg1] = count();", agg_size=2063)


def test_without_probes_there_is_no_code() -> None:
    run = made(HostRig, 'trace("text");')
    assert isinstance(run, HostRig)
    code = compile_host(ProgramEntries(run.program, run.layout, [], (), BASE), run.machine)
    assert (code.entries, code.strings, code.owner) == ({}, b"text\0", None)
