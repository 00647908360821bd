"""The tree of one call, from the blocks of instructions that CPUs execute in it.

No probes are needed for this: a function is called when a CPU executes its first instruction, and
its call is over when the CPU executes code of the caller with the caller's stack.

Tested by tests/views/test_executed_call.py and tests/vm/boot/test_boot_flow.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from kinst.core.dataclass import dataclass
from kinst.core.machine import ExecutedBlock
from kinst.core.probe import Function
from kinst.views.call_tree import Call, CallTree


@dataclass(frozen=True, slots=True)
class CallRules:
    """What tells calls of a kernel's functions in its execution.

    Attributes:
        entries: addresses of the functions' entries.
        function_at: returns the function that contains an address.
        refusal: returns why calls of a function are left out of the tree; "" if they are shown.
        interrupts: addresses of the functions that run at the start or end of an interrupt. Their
            calls are left out, with all that is called in them.
        arguments: names of the registers of a C function's first arguments.
        result: name of the register of its result.
        link: name of the register that has the return address at its entry; "" if that is on the
            stack, and the return removes it.
        stack_size: bytes of a thread's stack, which begins at a multiple of this.
    """

    entries: Collection[int]
    function_at: Callable[[int], Function | None]
    refusal: Callable[[Function], str]
    interrupts: Collection[int]
    arguments: tuple[str, ...]
    result: str
    link: str
    stack_size: int


@dataclass(slots=True)
class _Open:
    """A call that is not over.

    Attributes:
        call: the call in the tree or, if this one is left out, the call that contains it.
        address: entry of the function.
        stack: the stack pointer at the entry.
        returns_to: the return address; 0 if it was on the stack.
        is_shown: whether the call is in the tree.
        by_interrupt: whether it was made in an interrupt.
    """

    call: Call
    address: int
    stack: int
    returns_to: int
    is_shown: bool
    by_interrupt: bool


class ExecutedCall:
    """The first call of a function, as it is executed.

    Attributes:
        left_out: number of calls that are left out, by the function and the reason.
    """

    def __init__(self, function: Function, rules: CallRules) -> None:
        self._function, self._rules = function, rules
        self._open: list[_Open] = []
        self._root: Call | None = None
        self._stack = range(0)  # addresses of the thread's stack
        # Functions that were called, and why they are left out, by entry.
        self._known: dict[int, tuple[Function | None, str]] = {}
        self._interrupted = 0
        self.left_out: Counter[tuple[str, str]] = Counter()

    @property
    def tree(self) -> CallTree | None:
        """The tree of the call, without times; None if the function was not called."""
        return None if self._root is None else CallTree(self._root, {}, self._interrupted)

    @property
    def is_over(self) -> bool:
        """Whether the call has returned."""
        return self._root is not None and not self._open

    def take(self, blocks: Iterable[ExecutedBlock]) -> None:
        """Take the next blocks that CPUs have executed, in order. Blocks of other threads are
        ignored, and so are those after the end of the call."""
        for block in blocks:
            if self._root is None:
                if block.address != self._function.address:
                    continue
                size = self._rules.stack_size
                low = block.stack - block.stack % size
                self._stack = range(low, low + size)
                self._enter(block, self._function, is_shown=True, by_interrupt=False)
                self._root = self._open[-1].call
            elif block.stack in self._stack:
                self._leave(block)
                if not self._open:
                    return
                if block.address in self._rules.entries:
                    self._called(block)

    def _called(self, block: ExecutedBlock) -> None:
        """Handle a block at the beginning of a function."""
        last, rules = self._open[-1], self._rules
        if (last.address, last.stack) == (block.address, block.stack):
            return  # the function's loop, or the block once more, after a fault
        if block.address not in self._known:
            function = rules.function_at(block.address)
            self._known[block.address] = function, rules.refusal(function) if function else ""
        function, why = self._known[block.address]
        if function is None:
            return
        if block.address in rules.interrupts:
            self._interrupted += not last.by_interrupt
            self._enter(block, function, is_shown=False, by_interrupt=True)
            return
        if why and block.stack != last.stack and not last.by_interrupt:  # it was not jumped to
            self.left_out[function.name, why] += 1
        self._enter(block, function, is_shown=not why, by_interrupt=last.by_interrupt)

    def _enter(
        self, block: ExecutedBlock, function: Function, *, is_shown: bool, by_interrupt: bool
    ) -> None:
        """Begin a call."""
        rules = self._rules
        back = block.register(rules.link) if rules.link else 0
        is_shown = is_shown and not by_interrupt
        if is_shown:
            arguments = tuple(map(block.register, rules.arguments))
            call = Call((function.module, function.name), block.cpu, 0, back, arguments)
            if self._open:
                self._open[-1].call.calls.append(call)
        else:
            call = self._open[-1].call
        self._open.append(_Open(call, block.address, block.stack, back, is_shown, by_interrupt))

    def _leave(self, block: ExecutedBlock) -> None:
        """End the calls that are over when a CPU begins to execute a block."""
        while self._open and self._has_returned(self._open[-1], block):
            ended = self._open.pop()
            if ended.is_shown:
                ended.call.cpu = block.cpu
                ended.call.result = block.register(self._rules.result)
                ended.call.returns_to = ended.returns_to or block.address

    def _has_returned(self, one: _Open, block: ExecutedBlock) -> bool:
        """Return whether a call is over when a CPU begins to execute a block."""
        if block.stack > one.stack:
            return True
        return block.stack == one.stack and block.address == one.returns_to
