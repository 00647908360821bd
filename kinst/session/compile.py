"""Stage that parses the programs of a request and checks them together; it needs no machine.

Tested by tests/session/test_compile_once.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kinst.core.dialect import Dialect
from kinst.core.registers import RegisterNames
from kinst.core.types import TypeSource
from kinst.dlang.walk import symbols_in
from kinst.providers import load_all
from kinst.session.batches import check_batches
from kinst.session.check import check_programs
from kinst.session.compiled import Compiled
from kinst.session.descriptions import check_descriptions, check_providers, wants_kernel
from kinst.session.parse import host_dialect, options_of, parse_request
from kinst.session.request import Request
from kinst.session.stability import check_stability
from kinst.sugar.library_probes import probe_names


def compile_program(
    request: Request,
    isa: RegisterNames,
    types: TypeSource,
    say: Callable[[str], None],
    dialect: Callable[[], Dialect],
) -> Compiled:
    """Parse a request's programs, and check everything that can be checked without a kernel.

    Args:
        isa: the register names of the ISA to be traced.
        types: the types of the kernel to be traced.
        say: called with the C preprocessor's messages.
        dialect: returns the traced system's part of D.

    Raises DError for an error in a program, with its position, and KinstError for an error in the
    options.
    """
    providers = load_all()
    compiled = compile_request(request, isa, 0, types, say, dialect)
    check_stability(compiled, providers)
    if not (request.zero or compiled.options.zdefs):
        check_descriptions(compiled.program, providers)
    if compiled.batch:
        wants = partial(wants_kernel, providers=providers, fired=True)
        check_batches(compiled.program, wants)
    return compiled


def needs_kernel(compiled: Compiled, *, fired: bool) -> bool:
    """Return whether a program uses probes or symbols of a kernel.

    Args:
        fired: whether the program is to run. A program that runs also needs a kernel for profile-N,
            which samples the kernel's CPUs.
    """
    wanted = bool(symbols_in(compiled.program))
    return wanted or wants_kernel(compiled.patterns, load_all(), fired=fired)


def compile_request(
    request: Request,
    isa: RegisterNames,
    target_pid: int,
    types: TypeSource | None = None,
    say: Callable[[str], None] | None = None,
    dialect: Callable[[], Dialect] = host_dialect,
) -> Compiled:
    """Parse the programs of -n, -P, -m, -f, -i and -s, and check them as one program.

    Args:
        isa: the register names of the ISA to be traced.
        target_pid: the value of $target.
        types: the types of the kernel to be traced; None if they are not known.
        say: called with the C preprocessor's messages.
        dialect: returns the traced system's part of D.

    Raises DError for an error in a program, with its position, and KinstError for an error in the
    options.
    """
    programs = parse_request(request, target_pid, types, say, dialect=dialect)
    if not (request.zero or options_of(request, programs).zdefs):
        check_providers(programs, load_all(), lambda: probe_names(dialect().libraries))
    return check_programs(request, programs, isa, types, dialect)
