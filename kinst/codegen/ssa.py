"""Builder of LLVM assembly as text.

llvmlite.ir lacks atomic access through opaque pointers, string attributes, and types that a type
checker can see.  Every address is an i64; only this module converts addresses to pointers (LLVM
Language Reference: "inttoptr", "Atomic Memory Ordering").

Tested by tests/codegen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from kinst.core.dataclass import dataclass

LIKELY = 2000  # branch weight of the side that is nearly always taken


@dataclass(frozen=True, slots=True)
class IrValue:
    """An LLVM integer of `bits` bits.

    Attributes:
        bits: its width.
        text: its name (%v.1) or, for a constant, its number, as LLVM spells it.
    """

    bits: int
    text: str

    def __str__(self) -> str:
        return f"i{self.bits} {self.text}"


def const(value: int, bits: int = 64) -> IrValue:
    """Return a constant of `bits` bits: `value` modulo 2**bits."""
    return IrValue(bits, str(value & ((1 << bits) - 1)))


@dataclass(frozen=True, slots=True)
class IrLocal:
    """A local variable of an LLVM function, which LLVM moves into a register.

    Attributes:
        bits: its width.
        name: its name in LLVM assembly.
    """

    bits: int
    name: str


@dataclass(slots=True)
class IrFunction:
    """An LLVM function under construction.

    Attributes:
        name: name of the function.
        params: its parameters.
        result: bits of its result, 0 for void.
        convention: LLVM's calling convention.
        internal: whether only functions of the same LLVM module call it.
        noinline: whether LLVM must not inline it.
        frame_pointer: whether it sets up a frame pointer.
        naked: whether it has no prologue and no epilogue.
        locals: the instructions that make its local variables.
        lines: its other instructions.
        at: label of the block under construction.
        count: number of names that fresh() has made.
    """

    name: str
    params: tuple[IrValue, ...]
    result: int
    convention: str
    internal: bool = True
    noinline: bool = False
    frame_pointer: bool = False
    naked: bool = False
    locals: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    at: str = "begin"
    count: int = 0

    def fresh(self, hint: str = "v") -> str:
        """Return a name for a value or label that is new in this function and starts with
        `hint`.
        """
        self.count += 1
        return f"{hint}.{self.count}"

    def _line(self, text: str) -> None:
        self.lines.append("  " + text)

    def _value(self, bits: int, text: str) -> IrValue:
        name = "%" + self.fresh()
        self._line(f"{name} = {text}")
        return IrValue(bits, name)

    # Arithmetic.

    def op(self, opcode: str, left: IrValue, right: IrValue | int) -> IrValue:
        """Emit a binary instruction modulo 2**bits; return its result.

        Args:
            opcode: add, sub, mul, and, or, xor, shl, lshr, ashr, udiv, sdiv, urem or srem.
        """
        operand = const(right, left.bits) if isinstance(right, int) else right
        return self._value(left.bits, f"{opcode} {left}, {operand.text}")

    def add(self, left: IrValue, right: IrValue | int) -> IrValue:
        return left if right == 0 else self.op("add", left, right)

    def icmp(self, predicate: str, left: IrValue, right: IrValue | int) -> IrValue:
        operand = const(right, left.bits) if isinstance(right, int) else right
        return self._value(1, f"icmp {predicate} {left}, {operand.text}")

    def select(self, condition: IrValue, then: IrValue, otherwise: IrValue) -> IrValue:
        return self._value(then.bits, f"select {condition}, {then}, {otherwise}")

    def convert(self, value: IrValue, bits: int, signed: bool) -> IrValue:
        """Emit a truncation or an extension to `bits` bits; return the result.

        Args:
            signed: whether to extend by the sign bit; otherwise, by zeros.
        """
        if bits == value.bits:
            return value
        opcode = "trunc" if bits < value.bits else "sext" if signed else "zext"
        return self._value(bits, f"{opcode} {value} to i{bits}")

    def leading_zeros(self, value: IrValue) -> IrValue:
        """Emit a count of the leading zeros of an i64; return the count, which is 64 for 0."""
        return self._value(64, f"call i64 @llvm.ctlz.i64({value}, i1 false)")

    def assume(self, condition: IrValue) -> None:
        """Tell LLVM that the condition (an i1) is true at this point."""
        self._line(f"call void @llvm.assume({condition})")

    # Memory.

    def _pointer(self, address: IrValue, space: int = 0) -> str:
        kind = f"ptr addrspace({space})" if space else "ptr"
        name = "%" + self.fresh("p")
        self._line(f"{name} = inttoptr {address} to {kind}")
        return f"{kind} {name}"

    def load(self, bits: int, address: IrValue, space: int = 0) -> IrValue:
        return self._value(bits, f"load i{bits}, {self._pointer(address, space)}, align 1")

    def store(self, value: IrValue, address: IrValue) -> None:
        self._line(f"store {value}, {self._pointer(address)}, align 1")

    def load_atomic(self, address: IrValue, ordering: str = "monotonic") -> IrValue:
        pointer = self._pointer(address)
        return self._value(64, f"load atomic i64, {pointer} {ordering}, align 8")

    def store_atomic(self, value: IrValue, address: IrValue, ordering: str = "monotonic") -> None:
        self._line(f"store atomic {value}, {self._pointer(address)} {ordering}, align 8")

    def fence(self, ordering: str) -> None:
        """Emit a fence with the ordering acquire or release, as C11's atomic_thread_fence()."""
        self._line(f"fence {ordering}")

    def exchange_if(
        self, address: IrValue, expected: IrValue, new: IrValue, ordering: str = "acq_rel monotonic"
    ) -> IrValue:
        """Emit an atomic compare-and-exchange: if the aligned u64 at `address` equals `expected`,
        store `new` in it.

        Args:
            address: address of the u64.
            expected: the value to compare with.
            new: the value to store.
            ordering: LLVM's orderings of success and of failure.

        Returns:
            An i1, 1 if `new` was stored.
        """
        pair = "%" + self.fresh("c")
        pointer = self._pointer(address)
        self._line(f"{pair} = cmpxchg {pointer}, {expected}, {new} {ordering}, align 8")
        return self._value(1, f"extractvalue {{ i64, i1 }} {pair}, 1")

    def change_atomic(self, operation: str, address: IrValue, by: IrValue) -> IrValue:
        """Emit an atomic read-modify-write of the aligned integer at `address`; return the
        integer's value before the change.

        Args:
            operation: "add", "or" or "and".
            by: the other operand, as wide as the integer.
        """
        pointer = self._pointer(address)
        return self._value(
            by.bits, f"atomicrmw {operation} {pointer}, {by} acq_rel, align {by.bits // 8}"
        )

    def increment(self, address: IrValue, by: IrValue | int = 1) -> None:
        """Emit an addition to the u64 at `address`.  The addition is not atomic: only this CPU may
        write the u64.
        """
        self.store(self.op("add", self.load(64, address), by), address)

    def barrier(self) -> None:
        """Keep LLVM from moving memory accesses across this point.  No instruction is emitted for
        it.
        """
        self._line('fence syncscope("singlethread") seq_cst')

    def local(self, bits: int, value: int = 0) -> IrLocal:
        """Declare a local variable with this initial value; return the variable."""
        name = "%" + self.fresh("l")
        self.locals.append(f"  {name} = alloca i{bits}\n  store i{bits} {value}, ptr {name}")
        return IrLocal(bits, name)

    def buffer(self, size: int) -> IrValue:
        """Reserve `size` bytes on the stack; return their address.  The function gets a frame
        pointer, so that a kernel that follows frame pointers can see that the bytes are in this
        function's frame.
        """
        name = "%" + self.fresh("b")
        self.locals.append(f"  {name} = alloca [{size} x i8], align 8")
        self.frame_pointer = True
        return self._value(64, f"ptrtoint ptr {name} to i64")

    def get(self, local: IrLocal) -> IrValue:
        return self._value(local.bits, f"load i{local.bits}, ptr {local.name}")

    def set(self, local: IrLocal, value: IrValue) -> None:
        self._line(f"store {value}, ptr {local.name}")

    # Control.

    def block(self, label: str) -> None:
        """Begin the basic block with this label."""
        self.lines.append(f"{label}:")
        self.at = label

    def jump(self, label: str) -> None:
        self._line(f"br label %{label}")

    def branch(self, condition: IrValue, yes: str, no: str, likely: bool | None = None) -> None:
        """Emit a conditional branch.

        Args:
            condition: an i1.
            yes: label to branch to if the condition is 1.
            no: label to branch to if the condition is 0.
            likely: True if `yes` is nearly always taken, False if `no` is; None if unknown.
        """
        hint = "" if likely is None else ", !prof !0" if likely else ", !prof !1"
        self._line(f"br {condition}, label %{yes}, label %{no}{hint}")

    def phi(self, bits: int, sources: Sequence[tuple[IrValue, str]]) -> IrValue:
        pairs = ", ".join(f"[ {value.text}, %{label} ]" for value, label in sources)
        return self._value(bits, f"phi i{bits} {pairs}")

    def call(self, function: IrFunction, args: Sequence[IrValue]) -> IrValue:
        """Emit a call of a function; return its result, or the constant 0 for a void function."""
        text = (
            f"call {function.convention} {_type(function.result)} @{function.name}({_list(args)})"
        )
        if function.result:
            return self._value(function.result, text)
        self._line(text)
        return const(0)

    def call_c(self, address: int, args: Sequence[IrValue]) -> IrValue:
        """Emit a call of the C function at this address; return its result, an i64."""
        return self._value(64, f"call i64 inttoptr (i64 {address} to ptr)({_list(args)})")

    def asm(self, template: str, constraints: str) -> IrValue:
        """Emit LLVM IR that reads an i64 by machine-specific means, such as the cycle counter or a
        system register; return the i64.

        Args:
            template: inline assembly, the name of an LLVM intrinsic (llvm.x), or a register of the
                machine (%tpidr_el1).
            constraints: constraints of the inline assembly.
        """
        if template.startswith("%"):
            read = "@llvm.read_volatile_register.i64"
            return self._value(64, f'call i64 {read}(metadata !{{!"{template[1:]}"}})')
        if template.startswith("llvm."):
            return self._value(64, f"call i64 @{template}()")
        text = template.replace("\\", "\\5C").replace('"', "\\22").replace("\n", "\\0A")
        return self._value(64, f'call i64 asm sideeffect "{text}", "{constraints}"()')

    def opaque(self, value: IrValue) -> IrValue:
        """Emit empty inline assembly that copies a value; return the copy. LLVM knows nothing about
        it, so it does not replace arithmetic on the copy by a select or a branch.
        """
        return self._value(value.bits, f'call i{value.bits} asm "", "=r,0"({value})')

    def ret(self, value: IrValue | None = None) -> None:
        self._line("ret void" if value is None else f"ret {value}")

    def text(self) -> str:
        linkage = "internal " if self.internal else ""
        extra = f' "frame-pointer"="{"all" if self.frame_pointer else "none"}"'
        extra += " noinline" if self.noinline else ""
        extra += " naked" if self.naked else ""
        head = f"define {linkage}{self.convention} {_type(self.result)} @{self.name}"
        body = "\n".join([*self.locals, *self.lines])
        return f"{head}({_list(self.params)}) #0{extra} {{\nbegin:\n{body}\n}}\n"


def _type(bits: int) -> str:
    return f"i{bits}" if bits else "void"


def _list(values: Sequence[IrValue]) -> str:
    return ", ".join(map(str, values))


def module_text(triple: str, functions: Sequence[IrFunction]) -> str:
    """Return LLVM assembly of a module with these functions.

    The functions have these attributes: no-builtins, so that LLVM does not turn loops into calls of
    memset; no-jump-tables, so that there is no read-only data; noredzone, because faults push on
    the interrupted stack.

    Args:
        triple: LLVM's target triple.
    """
    parts = [f'target triple = "{triple}"', "declare i64 @llvm.ctlz.i64(i64, i1)"]
    parts.append("declare void @llvm.assume(i1)")
    parts.append("declare i64 @llvm.read_volatile_register.i64(metadata)")
    parts += [f"declare i64 @llvm.{name}()" for name in ("readcyclecounter", "readsteadycounter")]
    parts += [function.text() for function in functions]
    parts.append(
        'attributes #0 = { nounwind noredzone noimplicitfloat "no-builtins"'
        ' "no-jump-tables"="true" }'
    )
    parts.append(f'!0 = !{{!"branch_weights", i32 {LIKELY}, i32 1}}')
    parts.append(f'!1 = !{{!"branch_weights", i32 1, i32 {LIKELY}}}')
    return "\n".join(parts) + "\n"
