"""The pid provider: entries, returns and instructions of a user program that kinst traces (Dynamic
Tracing Guide, "pid Provider").

pid$target:a.out:FUNCTION:entry and :return are as in the provider fbt. An instruction is named by
its offset from the function's start, in hexadecimal: pid$target:a.out:main:1c. A description with
an empty probe name, such as pid$target:a.out:main:, means the entry, the returns and all
instructions. The module a.out is the program's executable file. If a library of the program is
traced in its place, the module is the library's file name (session/process_probes.py).

The process id is not part of the provider's name here: kinst has moved it to ProbePattern.process
(session/process_probes.py).

Tested by tests/providers/test_pid.py and tests/machines/process/test_pid.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from kinst.core.dtypes import DType
from kinst.core.errors import AbsentError, KinstError
from kinst.core.kernel import Found, Kernel, Provider
from kinst.core.probe import ProbeInterface, ProbeName, ProbePattern
from kinst.core.stability import stability_of
from kinst.core.types import PROGRAM, TypeSource
from kinst.core.words import COLD
from kinst.providers import fbt
from kinst.providers.kinst import instruction_probes


class PidProvider(Provider):
    """The provider of probes in a user program."""

    name = "pid"
    stability = stability_of(
        "Evolving/Evolving/ISA", "Private/Private/Unknown", "Private/Private/Unknown",
        "Evolving/Evolving/ISA", "Private/Private/Unknown",
    )  # fmt: skip
    interface = ProbeInterface(returns=("return",), of_process=True)
    usage = (
        "pid$target:a.out:FUNCTION: names the instructions of a program (--process -c CMD), with"
        " entry, return or an offset in hexadecimal after it"
    )

    def argument_types(self, pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
        if pattern.provider != self.name:
            return None
        as_fbt = replace(pattern, provider=fbt.PROVIDER.name, process=None)
        return fbt.PROVIDER.argument_types(as_fbt, types)

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Iterator[Found]:
        if pattern.provider != self.name or kernel is None:
            return
        module = pattern.module or "*"
        module = PROGRAM if fnmatchcase(PROGRAM, module) else module
        glob = not pattern.function or any(c in pattern.function for c in "*?[")
        functions = kernel.find(module, pattern.function or "*")
        if not functions and module != PROGRAM and not kernel.find(module, "*"):
            raise KinstError(
                f"{pattern.module} is not the file whose instructions kinst counts",
                f"{PROGRAM} means the program's executable file",
            )
        if not functions and not glob:
            raise AbsentError(
                f'no function named "{pattern.function}" in {pattern.module or "the program"}',
                kernel.suggest(pattern.function),
            )
        provider, name = pattern.full_provider, pattern.name
        kernel.fetch(functions)
        names = [one for one in fbt.NAMES if fnmatchcase(one, name or "*")]
        whole = [one for one in functions if not (glob and COLD in one.name)] if names else []
        arguments = fbt.entry_arguments(kernel.isa)
        exits = kernel.exits(whole) if "return" in names else [None] * len(whole)
        for function, leaving in zip(whole, exits, strict=True):
            for one in names:
                probe = ProbeName(provider, function.module, function.name, one)
                yield from fbt.sites(probe, function, kernel, arguments, leaving)
        if name not in fbt.NAMES:
            yield from instruction_probes(provider, name, functions, kernel, hexadecimal=True)


PROVIDER = PidProvider()
