"""locals->NAME in a session: which instructions are meant, and where their variables live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.kernel import Kernel
from kinst.core.locals import Local
from kinst.core.probe import ProbePattern
from kinst.core.types import KERNEL, TypeSource, as_named
from kinst.image.dwarf.expressions import NotHereError
from kinst.image.dwarf.frames import Frame
from kinst.image.dwarf.locals import DwarfLocals
from kinst.image.type_files import CallConvention, FileTypes, ImageTypes
from kinst.providers import load_all
from kinst.session.lines import ModuleFiles, module_files
from kinst.session.program import with_programs
from kinst.session.report import Report
from kinst.session.values import Compiled, Files, Request, TracedMachine
from kinst.sugar.locals import Place, expand_locals, has_locals

MOST_NAMES = 8  # variables that a message lists
MASK = (1 << 64) - 1
FAR = 400  # instructions that are looked at for one where a variable lives


def call_convention(isa: Isa) -> CallConvention:
    """What a caller's values are found by."""
    names = isa.dwarf_registers
    own = [r.d_name for r in isa.registers if r.slot == isa.sp_slot and r.d_name in names]
    kept = frozenset(names.index(name) for name in isa.kept_registers)
    return CallConvention(isa.returns_of, names.index(own[0]), kept, isa.signature_bits)


FrameAddress = Callable[[int], tuple[str, int] | None]


class ImageLocals:
    """The variables of the functions of a kernel, or of a file.

    frame_address: (register's D name, offset) of the canonical frame address at an instruction,
    None where it is not known.  slide: from the file's addresses to those of the kernel proper.
    """

    def __init__(
        self,
        kernel: Kernel,
        frame_address: FrameAddress,
        slide: int,
        types: FileTypes,
        modules: ModuleFiles,
    ) -> None:
        self._kernel = kernel
        self._frame_address = frame_address
        self._slide = slide
        self._types = types
        self._modules = cache(modules)
        self._registers = kernel.isa.dwarf_registers
        self._calls = call_convention(kernel.isa)
        self._providers = load_all()

    def places(self, pattern: ProbePattern) -> Sequence[Place]:
        """The instructions that a description means."""
        found = [
            f for p in self._providers.values() for f in p.match(pattern, self._kernel) if f.site
        ]
        if not found:
            raise KinstError(f"{pattern}: local variables are read at instructions of functions")
        # Each instruction is a probe of its own with kinst, and not with fbt.
        fixed = len({f.name for f in found}) < len(found)
        made = []
        for one in found:
            assert one.site is not None
            name = one.name
            exact = ProbePattern(name.provider, name.module, name.function, name.name)
            text = f"{one.site.function.name}+{one.site.offset}"
            made.append(Place(exact, one.site.address, text, fixed))
        return made

    def find(self, place: Place, name: str, inlined: str) -> Local:
        """Raises KinstError where the functions there have no such variable."""
        locals_, frame, function = self._at(place.address)
        found = locals_.find(function, frame, name, inlined)
        if found is not None:
            return _with_types(found, self._types)
        names = locals_.names(function, frame.address)
        shown = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        raise KinstError(
            f"no local variable {name} at {place.text}", f"there are {shown}" if shown else ""
        )

    def _at(self, address: int) -> tuple[DwarfLocals, Frame, str]:
        function = self._kernel.at(address)
        if function is None:
            raise KinstError(f"{address:#x} is in no function")
        module = function.module or KERNEL
        linked, place = self._linked(module, address)
        found = self._types.locals(module, self._registers, self._calls)
        if found is None:
            raise KinstError(f"{module} has no debug information: no local variables")
        rule = self._frame_address(address)
        cfa = None if rule is None else f"(regs[{rule[0]}] + {rule[1]})"
        first = self._kernel.parts(function)[0].address == address
        return found, Frame(linked, first, cfa, place), function.name

    def _linked(self, module: str, address: int) -> tuple[int, Callable[[int], int]]:
        """An address as a file's index has it, and where the file's addresses are as running."""
        image = self._types.with_dwarf(module)
        if module == KERNEL:
            slide = self._slide
            return address - slide & MASK, partial(_placed, image, lambda at: at + slide & MASK)
        files = self._modules(module)
        if files is None:
            raise KinstError(
                f"module {module} has no debug file that fits: its local variables are not known",
                "--debug DIR says where it is",
            )
        _, move, back = files
        linked = back(address)
        if linked is None:
            raise KinstError(f"{address:#x} is in no section of module {module}'s file")
        return linked, partial(_placed, image, move)

    def nearest(self, place: Place, name: str, inlined: str) -> str:
        """Where near a place a variable can be read."""
        function = self._kernel.at(place.address)
        if function is None:
            return ""
        rows = self._kernel.instructions(function)
        order = sorted(rows, key=lambda i: abs(i.address - place.address))[:FAR]
        for one in order:
            locals_, frame, symbol = self._at(one.address)
            found = locals_.find(symbol, frame, name, inlined)
            if found is not None and not found.reason:
                return (
                    f"the nearest instruction where it lives is +{one.address - function.address}"
                )
        return "it lives nowhere in this function"


def _with_types(local: Local, types: TypeSource) -> Local:
    """The variable with the types that the rest of the program has."""
    return Local(
        local.name, as_named(local.type, types), local.function, local.pieces, local.reason
    )


def _placed(image: ImageTypes, move: Callable[[int], int | None], address: int) -> int:
    """Where a variable is as running.  Raises NotHereError."""
    if image.is_per_cpu(address):
        raise NotHereError("it is per-CPU: each CPU has its own")
    found = move(address)
    if found is None:
        raise NotHereError("it is in a part of the module that is not loaded")
    return found


def with_locals(
    request: Request, compiled: Compiled, traced: TracedMachine, files: Files, report: Report
) -> Compiled:
    """The request compiled anew with every locals->NAME replaced (kinst.sugar.locals).

    Raises DError at a variable that cannot be read.
    """
    if not has_locals(compiled.tree):
        return compiled
    if traced.kernel is None or traced.personality is None:
        raise KinstError("local variables can be read only in a kernel")
    if not isinstance(compiled.types, FileTypes):
        raise KinstError("local variables need debug information")
    known = ImageLocals(
        traced.kernel, traced.personality.frame_address, traced.personality.facts.slide,
        compiled.types, module_files(traced, files, report),
    )  # fmt: skip
    made = expand_all(request, compiled, known, traced.isa, report)
    report.stage("local variables")
    return made


def expand_all(
    request: Request, compiled: Compiled, known: ImageLocals, isa: Isa, report: Report
) -> Compiled:
    """The request with what kinst.sugar.locals makes of its programs.  Raises DError."""
    programs = []
    for program in compiled.programs:
        one = expand_locals(program, known.places, known.find, known.nearest)
        programs.append(one.program)
        for note in one.notes:
            report.say(f"kinst: {note}")
    return with_programs(request, tuple(programs), isa, compiled.types)
