"""Recorded addresses as text: stack(), ustack(), sym(), func(), mod(), uaddr() and the like
(libdtrace's dt_print_stack, dt_print_ustack, dt_print_sym, dt_print_mod)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinst.consumer.convert import Spec
from kinst.core.dtypes import USER_WORDS, DType, StackType, SymbolType
from kinst.core.records import Field

INDENT = 14  # of a frame's line, by default
NAME_WIDTH = 50  # of a traced symbol
INLINED = " (inlined)"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function or a variable, where it starts, and whose it is; name "" where only the module
    is known.  base: an address that stands for the module."""

    module: str
    name: str
    start: int
    base: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """What was recorded of a process: its id, where its program's code was loaded, and the file
    name of its program, at most 31 bytes of it."""

    pid: int
    code_start: int
    program: str


Lookup = Callable[[int], Symbol | None]
UserLookup = Callable[[Process, int], Symbol | None]


def is_address_data(field: Field) -> bool:
    """Whether a field is a stack or an address to be shown by name."""
    return isinstance(field.type, StackType | SymbolType)


def _nobody(address: int) -> Symbol | None:
    return None


def _no_user(process: Process, address: int) -> Symbol | None:
    return None


def _no_copies(address: int) -> Sequence[str]:
    return ()


def shown(address: int, symbol: Symbol | None, *, offset: bool = True) -> str:
    """module`function+0x13; module`0xADDRESS or 0xADDRESS where less is known."""
    if symbol is None:
        return f"{address:#x}"
    if not symbol.name:
        return f"{symbol.module}`{address:#x}"
    inside = address - symbol.start
    return f"{symbol.module}`{symbol.name}" + (f"+{inside:#x}" if offset and inside else "")


@dataclass(frozen=True, slots=True)
class Names:
    """Who gives names.  kernel: by address.  user: by process and address.  copies: the names
    of inlined functions whose code holds a kernel address, innermost first.  indent: of a
    frame's line, in columns."""

    kernel: Lookup = _nobody
    user: UserLookup = _no_user
    copies: Callable[[int], Sequence[str]] = _no_copies
    indent: int = INDENT

    def data(self, value: bytes, type_: DType) -> str:
        """As trace() and the default layout of aggregations show it."""
        if isinstance(type_, StackType):
            return self.stack(value, type_, self.indent)
        assert isinstance(type_, SymbolType)
        return f"  {self.symbol(value, type_):<{NAME_WIDTH}}"

    def formatted(self, value: bytes, type_: DType, spec: Spec) -> str:
        """By a conversion of printa(): %k for stacks (a width after - is the indentation), %a
        and %A for symbols."""
        if isinstance(type_, StackType):
            indent = (spec.width or 0) if "-" in spec.flags else self.indent
            return self.stack(value, type_, indent)
        assert isinstance(type_, SymbolType)
        text = Spec("s", spec.flags, spec.width, spec.precision, False)
        return text.format(self.symbol(value, type_).encode(), str)

    def symbol(self, value: bytes, type_: SymbolType) -> str:
        """The name of what sym() and the like recorded."""
        address = _words(value)[-1]
        symbol = self._symbol(value, type_)
        if type_.kind in ("mod", "umod"):
            return symbol.module if symbol is not None else f"{address:#x}"
        return shown(address, symbol, offset=type_.kind == "uaddr")

    def _symbol(self, value: bytes, type_: SymbolType) -> Symbol | None:
        address = _words(value)[-1]
        return self.user(_process(value), address) if type_.user else self.kernel(address)

    def merged(self, value: bytes, type_: DType) -> bytes:
        """What an address counts as in the key of an aggregation: sym(), func() and the like as
        the function's start, mod() and umod() as the module's base, so that what is
        shown as one is one (libdtrace's dt_aggregate_sym() and dt_aggregate_mod())."""
        if not isinstance(type_, SymbolType) or type_.kind == "uaddr":
            return value
        symbol = self._symbol(value, type_)
        if symbol is None:
            return value
        start = symbol.start if symbol.name else _words(value)[-1]
        if type_.kind in ("mod", "umod"):
            start = symbol.base
        return value[:-8] + (start & (1 << 64) - 1).to_bytes(8, "little")

    def stack(self, value: bytes, type_: StackType, indent: int) -> str:
        """One frame a line, up to the first zero; inlined functions, innermost first, above the
        frame whose code they are part of."""
        words = _words(value)
        process = _process(value) if type_.user else None
        lines = ["\n"]
        pad = " " * indent
        for number, pc in enumerate(words[USER_WORDS:] if type_.user else words):
            if not pc:
                break
            if process is not None:
                lines.append(f"{pad}{shown(pc, self.user(process, pc))}\n")
                continue
            symbol = self._caller(pc) if number else self.kernel(pc)
            module = symbol.module if symbol is not None else ""
            # A return address is behind the call, perhaps behind the copy that calls.
            for name in self.copies(pc - (number > 0)):
                lines.append(f"{pad}{module}`{name}{INLINED}\n")
            lines.append(f"{pad}{shown(pc, symbol)}\n")
        return "".join(lines)

    def _caller(self, back: int) -> Symbol | None:
        """The function that a return address is of.  Behind a call that does not return, it
        may lie behind the function's end."""
        symbol = self.kernel(back)
        if symbol is None or symbol.start == back:
            return self.kernel(back - 1) or symbol
        return symbol


def _process(value: bytes) -> Process:
    """From the USER_WORDS words in front."""
    name = value[16 : 8 * USER_WORDS].partition(b"\0")[0]
    pid, code_start = _words(value[:16])
    return Process(pid, code_start, name.decode(errors="replace"))


def _words(value: bytes) -> list[int]:
    return [int.from_bytes(value[i : i + 8], "little") for i in range(0, len(value), 8)]


NO_NAMES = Names()
