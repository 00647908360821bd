"""Calls of LLVM: from assembly to machine code, as bytes or in kinst's own process.

Only this module imports llvmlite, which takes a twelfth of a second to import. So
kinst.codegen.compile imports this module only when there is something to compile.

Tested by tests/codegen.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

from kinst.codegen.saved_code import ObjectCode, ObjectError

_SYMBOL = struct.Struct("<IBBHQQ")

# Sections that are not loaded, or that LLVM writes for tools.
_IDLE = (
    b".note",
    b".comment",
    b".llvm",
    b".eh_frame",
    b".riscv.attributes",
)


def read_object(data: bytes) -> ObjectCode:
    """Return the code and the functions of the text section of an ELF object (System V ABI, chapter
    4).

    Raises ObjectError if the object has other sections to load, or relocations.
    """
    sections: dict[bytes, bytes] = {}
    for section in llvm.ObjectFileRef.from_data(data).sections():
        name = section.name() or b""
        if section.size() and not name.startswith(_IDLE):
            sections[name] = section.data()
    code = sections.pop(b".text", b"")
    symbols, names = sections.pop(b".symtab", b""), sections.pop(b".strtab", b"")
    sections.pop(b"", None)
    if sections:
        raise ObjectError(f"sections besides .text: {sorted(sections)}")
    offsets, sizes = {}, {}
    for name_at, info, _, section_index, value, size in _SYMBOL.iter_unpack(symbols):
        if info & 0xF == 2 and section_index:  # STT_FUNC
            name = names[name_at : names.index(b"\0", name_at)].decode()
            offsets[name], sizes[name] = value, size
    return ObjectCode(code, offsets, sizes)


@cache
def initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for inline assembly, see CodeMachine.timestamp_asm


@cache
def set_options(options: tuple[str, ...]) -> None:
    """Set LLVM's command line options, at most once: LLVM ends the process if an option is set a
    second time, so the function is cached.
    """
    for option in options:
        llvm.set_option("kinst", option)


def host_triple() -> str:
    """Return LLVM's target triple for this process."""
    return str(llvm.get_process_triple())


def _optimise(module: Any, target: Any) -> None:
    """Optimise an LLVM module with -O2, but without vectorising, unrolling and interleaving loops,
    which gain nothing in the short, mostly straight code of clauses.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(target, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    # In llvmlite 0.50, passes.close() frees nothing because of the order of the base classes.
    NewPassManager._dispose(passes)
    passes.detach()


def _module(ir: str) -> Any:
    module = llvm.parse_assembly(ir)
    module.verify()
    return module


def emitted(ir: str, triple: str, features: str, optimised: bool) -> ObjectCode:
    """Return the machine code of LLVM assembly."""
    module = _module(ir)
    target = llvm.Target.from_triple(triple).create_target_machine(
        features=features, opt=2 if optimised else 0, reloc="static", codemodel="small"
    )
    if optimised:
        _optimise(module, target)
    return read_object(target.emit_object(module))


def engine_of(ir: str, triple: str, features: str) -> Any:
    """Compile LLVM assembly for kinst's own process, without optimisation. Return LLVM's execution
    engine, which owns the compiled code.
    """
    target = llvm.Target.from_triple(triple).create_target_machine(
        features=features, opt=0, reloc="static", codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(_module(ir), target)
    engine.finalize_object()
    return engine
