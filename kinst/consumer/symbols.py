"""Names for the addresses that stack(), ustack(), sym(), func(), mod(), uaddr() and so on record.

Tested by tests/render/dtrace/test_symbols.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import USER_WORDS, DType, StackType, SymbolType
from kinst.core.inline import InlinedFrame, SourcePlace
from kinst.core.records import Field
from kinst.core.words import MASK
from kinst.events import Frame, Stack


@dataclass(frozen=True, slots=True)
class ResolvedSymbol:
    """The function or variable that an address belongs to.

    Attributes:
        module: name of the kernel module that contains the function or variable; in a process, name
            of the program or library.
        name: name of the function or variable; "" if only the module is known.
        start: address of the function or variable; 0 if only the module is known.
        base: an address that stands for the module, the same for all symbols of the module. In keys
            of an aggregation, it replaces the address that mod() or umod() recorded, so that all
            addresses in the module have one key.
    """

    module: str
    name: str
    start: int
    base: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as a record describes it.

    Attributes:
        pid: process id.
        code_start: address of the program's code.
        program: file name of the program, cut to 31 bytes.
    """

    pid: int
    code_start: int
    program: str


Lookup = Callable[[int], ResolvedSymbol | None]
UserLookup = Callable[[Process, int], ResolvedSymbol | None]


def is_address_data(field: Field) -> bool:
    """Return whether a field of a record is a stack or an address that is shown by name."""
    return isinstance(field.type, StackType | SymbolType)


def _no_kernel(address: int) -> ResolvedSymbol | None:
    return None


def _no_user(process: Process, address: int) -> ResolvedSymbol | None:
    return None


def _no_copies(address: int) -> Sequence[str]:
    return ()


def _no_place(module: str, address: int) -> SourcePlace | None:
    return None


def shown(address: int, symbol: ResolvedSymbol | None, *, offset: bool = True) -> str:
    """Return an address as text: module`function+0x13; module`0xADDRESS if only the module is
    known; 0xADDRESS if nothing is known.

    Args:
        symbol: the function or variable that the address belongs to, or None.
        offset: whether to show the offset in the function.
    """
    if symbol is None:
        return f"{address:#x}"
    if not symbol.name:
        return f"{symbol.module}`{address:#x}"
    inside = address - symbol.start
    return f"{symbol.module}`{symbol.name}" + (f"+{inside:#x}" if offset and inside else "")


@dataclass(frozen=True, slots=True)
class Names:
    """Functions that find names for addresses.

    Attributes:
        kernel: returns the function or variable at a kernel address.
        user: returns the function or variable at an address of a process.
        copies: returns the names of the inlined functions whose code contains a kernel address,
            innermost first.
        source_line: returns the source line of a kernel address, by module and address. This
            function is slow, and used only for Frames.
    """

    kernel: Lookup = _no_kernel
    user: UserLookup = _no_user
    copies: Callable[[int], Sequence[str]] = _no_copies
    source_line: Callable[[str, int], SourcePlace | None] = _no_place

    def symbol(self, value: bytes, type_: SymbolType) -> ResolvedSymbol | None:
        """Return the function or variable at an address that sym() or a similar subroutine
        recorded; None if it is not known.

        Args:
            value: the recorded bytes.
            type_: their type.
        """
        address = words_of(value)[-1]
        return self.user(process_of(value), address) if type_.user else self.kernel(address)

    def merged(self, value: bytes, type_: DType) -> bytes:
        """Return a key of an aggregation with its address replaced, so that addresses that are
        shown by one name make one key.

        The new address is the start of the function or variable. For mod() and umod() it is the
        base of the module (libdtrace's dt_aggregate_sym() and dt_aggregate_mod()). Keys without
        such an address, keys of uaddr() and unknown addresses are returned unchanged.

        Args:
            value: bytes of the key.
            type_: type of the key.
        """
        if not isinstance(type_, SymbolType) or type_.kind == "uaddr":
            return value
        symbol = self.symbol(value, type_)
        if symbol is None:
            return value
        start = symbol.start if symbol.name else words_of(value)[-1]
        if type_.kind in ("mod", "umod"):
            start = symbol.base
        return value[:-8] + (start & MASK).to_bytes(8, "little")

    def frame(self, pc: int, caller: bool) -> ResolvedSymbol | None:
        """Return the function of a frame of a kernel stack; None if it is not known.

        Args:
            pc: the frame's program counter or return address.
            caller: whether `pc` is a return address. If so, return the function of the byte before
                `pc`. A call may be the last instruction of its function; then `pc` is already in
                the next function.
        """
        return (self.kernel(pc - 1) if caller else None) or self.kernel(pc)


def process_of(value: bytes) -> Process:
    """Return the process that a recorded user address or stack belongs to, from the first
    USER_WORDS words of its bytes."""
    name = value[16 : 8 * USER_WORDS].partition(b"\0")[0]
    pid, code_start = words_of(value[:16])
    return Process(pid, code_start, name.decode(errors="replace"))


def stack_addresses(value: bytes, type_: StackType) -> list[int]:
    """Return the addresses of a recorded stack, innermost first, up to the first address 0."""
    addresses = words_of(value)[USER_WORDS if type_.user else 0 :]
    return addresses[: addresses.index(0)] if 0 in addresses else addresses


def words_of(value: bytes) -> list[int]:
    return [int.from_bytes(value[i : i + 8], "little") for i in range(0, len(value), 8)]


NO_NAMES = Names()


class FrameFinder:
    """Maker of Frames from recorded addresses. It looks each address up once."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._kernel: dict[tuple[int, bool], tuple[Frame, ...]] = {}
        self._user: dict[tuple[Process, int], Frame] = {}

    def stack(self, value: bytes, type_: StackType) -> Stack:
        """Return a Stack of what stack() or ustack() recorded, with a Frame for each address and
        for each inlined function at it.

        Args:
            value: the recorded bytes.
            type_: their type.
        """
        addresses = stack_addresses(value, type_)
        if type_.user:
            process = process_of(value)
            frames = tuple(self._in_process(process, pc) for pc in addresses)
            return Stack("user", frames, process.pid)
        found: list[Frame] = []
        for number, pc in enumerate(addresses):
            found += self._in_kernel(pc, number > 0)
        return Stack("kernel", tuple(found))

    def symbol(self, value: bytes, type_: SymbolType) -> Frame:
        """Return the Frame of the address that sym() or a similar subroutine recorded.

        Args:
            value: the recorded bytes.
            type_: their type.
        """
        address = words_of(value)[-1]
        if type_.user:
            return self._in_process(process_of(value), address)
        return self._in_kernel(address, False)[-1]

    def _in_process(self, process: Process, address: int) -> Frame:
        key = process, address
        if key not in self._user:
            self._user[key] = _frame(address, self._names.user(process, address))
        return self._user[key]

    def _in_kernel(self, pc: int, caller: bool) -> tuple[Frame, ...]:
        """Return the frames at a kernel address: those of inlined functions, innermost first, then
        that of the function.

        Args:
            pc: a program counter or return address.
            caller: whether `pc` is a return address.
        """
        key = pc, caller
        if key not in self._kernel:
            # A return address is after the call, and may be after the inlined copy that has the
            # call.
            at = pc - caller
            symbol = self._names.frame(pc, caller)
            module = symbol.module if symbol is not None else ""
            place = self._names.source_line(module, at) if module else None
            if place is None:
                place = SourcePlace(
                    "", 0, tuple(InlinedFrame(name, "", 0) for name in self._names.copies(at))
                )
            frames = [
                Frame(pc, module, one.function, 0, one.file, one.line, True)
                for one in place.inlined
            ]
            frames.append(replace(_frame(pc, symbol), file=place.file, line=place.line))
            self._kernel[key] = tuple(frames)
        return self._kernel[key]


def _frame(address: int, symbol: ResolvedSymbol | None) -> Frame:
    if symbol is None:
        return Frame(address)
    return Frame(address, symbol.module, symbol.name, address - symbol.start if symbol.name else 0)
