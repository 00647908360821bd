"""Programs for a machine, parsed and checked before there is one.

An error in a program is told from here, so this loads little of kinst.

Tested by tests/cli/test_start.py and tests/session/test_compile_once.py.
"""

from __future__ import annotations

from kinst.api.program import Program
from kinst.core.registers import RegisterNames
from kinst.isa import load_registers
from kinst.session.compile import compile_program
from kinst.session.kernel_files import KernelFiles, isa_of_file, with_build, with_vmlinux
from kinst.session.report import Report
from kinst.session.request import DEFAULT_ISA, Request


class Compiler:
    """Compiles programs for one machine.

    Attributes:
        request: which machine, with the files of --build.
        registers: of its instruction set.
        files: of its kernel.
    """

    def __init__(self, request: Request, report: Report) -> None:
        """Raises KinstError for an ISA that kinst does not know, and for files that are not there,
        TargetError for a machine to attach to that is not."""
        self.request = with_vmlinux(with_build(request), report)
        self.registers = _registers_of(self.request)
        self.files = KernelFiles(self.request, self.registers.name, report)
        self._report = report

    def compile(self, request: Request) -> Program:
        """Parse and check a request's program.  Raises DError with the place of what is wrong,
        KinstError for options."""
        files = self.files
        compiled = compile_program(
            request, self.registers, files.types, self._report.say, files.dialect
        )
        self._report.stage("compile D")
        return Program(request, compiled)


def _registers_of(request: Request) -> RegisterNames:
    """Return the registers of the machine: of the ISA of --vm or, if it runs already, of its
    kernel's file.  Raises KinstError for an ISA that kinst does not know, and for a file that is
    not there."""
    options = request.machine
    file = options.debug or options.kernel
    if file and not request.kind.abilities.boots:
        return isa_of_file(file)
    return load_registers(options.isa or DEFAULT_ISA)
