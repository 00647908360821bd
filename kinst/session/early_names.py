"""Check of the function names in a program against the kernel's file, before a guest is started.

A misspelled name is reported in half a second. After a start of the guest, the report would take
two seconds. The file is enough for a kernel that kinst has fetched: a running kernel has other
functions only if a module is loaded.

Tested by tests/vm/language/test_names_without_guest.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module

from kinst.core.errors import AbsentError, DError, KinstError, Span
from kinst.core.kernel import Provider
from kinst.core.probe import ProbePattern
from kinst.core.types import KERNEL
from kinst.image.elf_file import open_file
from kinst.kernels import fetch
from kinst.session.compiled import Compiled
from kinst.session.descriptions import shifted
from kinst.session.kernel_files import KernelFiles
from kinst.session.request import DEFAULT_ISA, Request

_PLAIN = re.compile(r"[A-Za-z_][\w.]*")  # a name that is neither a glob nor has a number (NAME@2)


def check_functions(
    request: Request, compiled: Compiled, files: KernelFiles, providers: Mapping[str, Provider]
) -> None:
    """Raise DError for the first probe description that names a function which the kernel will not
    have.

    Return without an error if that cannot be known from the file.

    Args:
        request: the request with the program.
        compiled: the program.
        files: files of the kernel.
        providers: all providers by name.
    """
    options = request.machine
    own = (options.kernel, options.debug, options.initrd, options.build, options.modules)
    if request.zero or compiled.options.zdefs or not request.kind.abilities.boots or any(own):
        return
    if options.root or options.writable:
        return  # kinst loads modules for these
    named = list(_named(compiled, providers))
    isa = options.isa or DEFAULT_ISA
    try:
        # With no kernel in the cache, one would be downloaded here.
        if not named or fetch.prepared(isa, options.release) is None:
            return
        missing = next((one for one in named if _lacks(files, one[0].function)), None)
        if missing is None:
            return
        error = _absent(files, isa, missing[0])
    except KinstError:
        return  # reported when the machine starts
    pattern, span = missing
    hint = shifted(pattern, providers) or error.hint
    raise DError(error.message, span, "D_PDESC_ZERO", hint) from error


def _named(
    compiled: Compiled, providers: Mapping[str, Provider]
) -> Iterator[tuple[ProbePattern, Span]]:
    """Yield each description that names one function of the kernel itself, not of a module, and the
    description's position in the program.
    """
    for clause in compiled.program.clauses:
        for pattern, span in zip(clause.patterns, clause.pattern_spans, strict=True):
            provider = providers.get(pattern.provider)
            if provider is None or not provider.names_functions:
                continue
            if pattern.module in ("", KERNEL) and _PLAIN.fullmatch(pattern.function):
                yield pattern, span


def _lacks(files: KernelFiles, name: str) -> bool:
    """Return whether the kernel's file certainly has neither a function nor an inline function of a
    name."""
    file = open_file(files.paths.debug)
    strings = file.section(".strtab")
    if strings is None:
        return False
    end, wanted = strings.offset + strings.size, name.encode() + b"\0"
    if file.mapped.find(b"\0" + wanted, strings.offset, end) >= 0:
        return False
    # The linker stores a name once that is also the end of another one.
    at_end = file.mapped.find(wanted, strings.offset, end) >= 0
    if at_end and files.image.elf.symbols.indexes(name):
        return False
    return files.image.lacks_function(name)


def _absent(files: KernelFiles, isa: str, pattern: ProbePattern) -> AbsentError:
    """Return the error for a description of a function that does not exist.

    The error is the same that a started machine would report.
    """
    image = import_module("kinst.session.file_image").FileImage(files.image.elf)
    kernel = import_module("kinst.session.kernel").RunningKernel(
        image, image, import_module("kinst.isa").load(isa)
    )
    error: AbsentError = import_module("kinst.core.kernel").no_function(
        kernel, pattern.module, pattern.function
    )
    return error
