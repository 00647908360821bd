"""Compiler of D programs for a machine that need not have been started.

kinst reports an error in a program from here, so this module imports little of kinst.

Tested by tests/cli/test_start.py and tests/session/test_compile_once.py.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from kinst.api.program import Program
from kinst.core.errors import DError
from kinst.core.registers import RegisterNames
from kinst.isa import load_registers
from kinst.providers import load_all
from kinst.session.compile import compile_program
from kinst.session.kernel_files import KernelFiles, isa_of_file, with_build, with_vmlinux
from kinst.session.report import Report
from kinst.session.request import DEFAULT_ISA, Request


class Compiler:
    """Parser and checker of D programs for one machine.

    Attributes:
        request: options of the machine, with files added that the user did not name: those in the
            folder of --build, the vmlinux of a kernel that runs already, or the file of a traced
            user program.
        registers: registers of the machine's instruction set.
        files: files of the machine's kernel.
    """

    def __init__(self, request: Request, report: Report) -> None:
        """Find the kernel's files and the instruction set of a machine.

        Args:
            request: options of the machine.
            report: gets messages and the times of stages.

        Raises:
            KinstError: kinst does not know the ISA, or a file does not exist.
            TargetError: the machine to attach to does not exist.
        """
        self.request = with_vmlinux(with_build(request), report)
        self.registers = _registers_of(self.request)
        self.files = KernelFiles(self.request, self.registers.name, report)
        self._report = report

    def compile(self, request: Request) -> Program:
        """Return the parsed and checked program of a request, whose machine must be this one.

        Raises:
            DError: the program is wrong; the error has the position in the text, and a translation
                if the program is written for another tracer.
            KinstError: an option is wrong.
        """
        request = replace(request, machine=self.request.machine)  # with the files that were found
        try:
            program = self._compile(request)
        except DError as error:
            translate = import_module("kinst.session.translate")
            error.translation = translate.translation_of(request, self._compile_and_look_up)
            raise
        self._report.stage("compile D")
        return program

    def _compile(self, request: Request) -> Program:
        files = self.files
        say = self._report.say
        compiled = compile_program(request, self.registers, files.types, say, files.dialect)
        return Program(request, compiled)

    def _compile_and_look_up(self, request: Request) -> None:
        self.check_functions(self._compile(request))

    def check_functions(self, program: Program) -> None:
        """Raise DError for the first probe description that names a function which the machine's
        kernel does not have. Do nothing if that cannot be known before the machine starts."""
        early_names = import_module("kinst.session.early_names")
        early_names.check_functions(program.request, program.compiled, self.files, load_all())


def _registers_of(request: Request) -> RegisterNames:
    """Return the registers of the machine's instruction set. The option --vm names it for a kernel
    that kinst boots; otherwise it is that of the ELF file of the kernel or user program. Raises
    KinstError if kinst does not know the ISA or the file does not exist."""
    options = request.machine
    file = options.debug or options.kernel
    if file and not request.kind.abilities.boots:
        return isa_of_file(file)
    return load_registers(options.isa or DEFAULT_ISA)
