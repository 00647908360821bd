"""Text of recorded addresses: stack(), ustack(), sym(), func(), mod(), uaddr() and so on
(libdtrace's dt_print_stack, dt_print_ustack, dt_print_sym, dt_print_mod)."""

from __future__ import annotations

from kinst.consumer.convert import Spec
from kinst.consumer.symbols import (
    NO_NAMES,
    Names,
    process_of,
    shown,
    stack_addresses,
    words_of,
)
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType, StackType, SymbolType

INDENT = 14  # default columns before a frame
NAME_WIDTH = 50  # columns of a traced symbol
INLINED = " (inlined)"


@dataclass(frozen=True, slots=True)
class SymbolText:
    """Formatter of recorded addresses as text.

    Attributes:
        names: finds the names of addresses.
        indent: columns before each frame of a stack.
    """

    names: Names = NO_NAMES
    indent: int = INDENT

    def data(self, value: bytes, type_: DType) -> str:
        """Return the text of a recorded stack or symbol, as trace() and the default layout of
        aggregations show it."""
        if isinstance(type_, StackType):
            return self.stack(value, type_, self.indent)
        assert isinstance(type_, SymbolType)
        return f"  {self.symbol(value, type_):<{NAME_WIDTH}}"

    def address(self, value: int) -> str:
        """Return the name of an integer that is an address, as the default layout of aggregations
        shows it."""
        return f"  {shown(value, self.names.kernel(value)):<{NAME_WIDTH}}"

    def formatted(self, value: bytes, type_: DType, spec: Spec) -> str:
        """Return the text of a recorded stack or symbol for a conversion of printa(): %k formats
        stacks, %a and %A format symbols. In %-14k, 14 is the indentation.
        """
        if isinstance(type_, StackType):
            indent = (spec.width or 0) if "-" in spec.flags else self.indent
            return self.stack(value, type_, indent)
        assert isinstance(type_, SymbolType)
        text = Spec("s", spec.flags, spec.width, spec.precision, False)
        return text.format(self.symbol(value, type_).encode(), str)

    def symbol(self, value: bytes, type_: SymbolType) -> str:
        """Return the name of an address that sym() or a similar D function has recorded."""
        address = words_of(value)[-1]
        symbol = self.names.symbol(value, type_)
        if type_.kind in ("mod", "umod"):
            return symbol.module if symbol is not None else f"{address:#x}"
        return shown(address, symbol, offset=type_.kind == "uaddr")

    def stack(self, value: bytes, type_: StackType, indent: int) -> str:
        """Return the text of a recorded stack: a line for each frame, up to the first zero address.

        Before a frame of the kernel come the inlined functions that its program counter is in,
        innermost first.
        """
        process = process_of(value) if type_.user else None
        lines = ["\n"]
        pad = " " * indent
        for number, pc in enumerate(stack_addresses(value, type_)):
            if process is not None:
                lines.append(f"{pad}{shown(pc, self.names.user(process, pc))}\n")
                continue
            symbol = self.names.frame(pc, caller=number > 0)
            module = symbol.module if symbol is not None else ""
            # A return address lies after the call, perhaps outside the inlined copy with the call.
            for name in self.names.copies(pc - (number > 0)):
                lines.append(f"{pad}{module}`{name}{INLINED}\n")
            lines.append(f"{pad}{shown(pc, symbol)}\n")
        return "".join(lines)


NO_SYMBOLS = SymbolText()
