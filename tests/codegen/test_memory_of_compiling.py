"""Memory of compiling, as the kernel reports it for this process: a compiled and discarded program
leaves nothing."""

from __future__ import annotations

import gc
import resource
from dataclasses import replace
from pathlib import Path

from kinst.codegen.compile import compile_functions
from kinst.codegen.ssa import IrFunction
from tests.codegen.codegen_rig import TargetRig, program

MOST = 3 << 20  # bytes for 150, of which LLVM's passes alone would keep 30 KB each


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_compiled_program_leaves_nothing() -> None:
    machine = replace(TargetRig(program([]), {1: (0,)}).target_machine(), llvm_options=())

    def compile_some(first: int, count: int) -> None:
        for number in range(first, first + count):
            code = IrFunction("f", (), 64, "ccc", internal=False)
            code.ret(code.asm(f"movabsq $${number}, $0", "=r"))
            assert compile_functions([code], machine)["f"]

    compile_some(0, 100)  # caches and the allocator have grown by now
    before = resident()
    compile_some(1000, 150)
    assert resident() - before < MOST
