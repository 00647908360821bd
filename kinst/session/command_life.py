"""Watch of the command of -c in the guest, from its execve(2) to its exit.

In the guest, kinst's helper processes (a shell script) start the command, wait for it and report
its status. These helpers sleep while the command lives. The machine stops at the command's execve,
and kinst plants the probes at that moment. After that, kinst sees in memory that the command has
exited, before the command's parent is told. So the probes count only the command and the kernel,
and need no predicate.

Tested by tests/vm/language/test_command_alone.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kinst.core.errors import TargetError
from kinst.core.machine import CommandEnded, Gone, Helpers, MachineEvent, Stopped
from kinst.core.system import CommandSpan
from kinst.session.host_clauses import read_access
from kinst.session.values import StartedMachine

START_SECONDS = 60.0  # until the command's execve, on a busy host
END_SECONDS = 60.0  # until its status is known, and all of its output has come
MOST_CHILDREN = 16  # generations that are followed
PIECE = 0.5  # seconds of one wait


class CommandLife:
    """Follower of the command of -c in the guest, until the command has exited.

    While the command runs, kinst's helper processes in the guest (one is the command's parent)
    wait.
    """

    def __init__(self, machine: StartedMachine, helpers: Helpers, span: CommandSpan) -> None:
        self._machine = machine
        self._target = machine.target
        self._helpers = helpers
        self._span = span
        self._thread = 0  # address of its first thread, 0 if kinst does not follow it
        self._held = False  # whether the helpers wait

    def begin(self, resume: Callable[[], None]) -> MachineEvent | None:
        """Run the machine until the command is about to execute its program, and stop the machine
        there.

        Returns the machine's event if the machine or the command ends too early, otherwise None.

        Args:
            resume: lets the machine run.
        """
        target, span = self._target, self._span
        target.insert_breakpoint(span.entry)
        self._held = True
        self._helpers.start_alone()
        resume()
        event = self._reach(resume)
        if not isinstance(event, Gone):
            target.stop()
            target.remove_breakpoint(span.entry)
        return None if isinstance(event, Stopped) else event

    def _reach(self, resume: Callable[[], None]) -> MachineEvent | None:
        """Wait until a CPU stops at the command's execve.

        Returns the stop. If the machine or the command ends before the execve, returns that event.
        Returns None if START_SECONDS pass without either.

        Args:
            resume: lets the machine run on if another process has stopped it.
        """
        machine, target = self._machine, self._target
        facts, deadline = machine.facts, time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            event = target.wait(PIECE)
            if not isinstance(event, Stopped):
                if event is not None:
                    return event
                continue
            if read_access(target, facts, event.cpu, facts.builtins["pid"]) == self._helpers.pid:
                thread = read_access(target, facts, event.cpu, facts.builtins["curthread"])
                self._thread = thread if isinstance(thread, int) else 0
                return event
            target.step_over(event.cpu, event.pc)
            resume()
        return None

    def has_ended(self) -> bool:
        """Return whether the kernel's memory shows that the command has exited.

        The command's parent has not been told yet. The machine may run.

        If the command cannot be followed any more, returns False, and lets the helper processes
        continue. The machine then reports the end of the command.
        """
        span, thread = self._span, self._thread
        if not self._held:
            return False
        state = self._word(thread + span.exit_state) if thread else None
        if not self._is_command() or state not in (0, span.zombie):
            self._go_on()
            return False
        if not state or (span.running >= 0 and self._word(thread + span.running)):
            return False
        group = self._word(thread + span.group, 8)
        return group is not None and self._word(group + span.thread_count) == 1

    def waits_in(self) -> str:
        """Return the kernel function in which the command waits.

        If the command has child processes, its first child is examined instead, or the first child
        of that child, and so on. "" if the examined process runs, or the function is not known.
        """
        span, thread = self._span, self._thread
        if not thread or not self._is_command():
            return ""
        for _ in range(MOST_CHILDREN):
            first = self._word(thread + span.children, 8)
            if first is None or first == thread + span.children:
                break
            thread = first - span.sibling
        runs = span.running >= 0 and self._word(thread + span.running)
        if runs or not self._word(thread + span.waiting):
            return ""
        return self._machine.system.waits_in(thread)

    def finish(self) -> MachineEvent | None:
        """Let the helpers continue, so that the command's parent learns of its exit.

        Returns the machine's report of the end of the command, or of the machine; None if the
        machine reports nothing within END_SECONDS.
        """
        self._go_on()
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            event = self._target.wait(PIECE)
            if isinstance(event, CommandEnded | Gone):
                return event
        return None

    def _go_on(self) -> None:
        if self._held:
            self._held = False
            self._helpers.go_on()

    def _is_command(self) -> bool:
        """Return whether the followed thread still has the command's process id.

        It loses this id if another thread of the process calls execve: that thread takes over the
        id.
        """
        offset = self._machine.facts.builtins["pid"].offsets[-1]
        return self._word(self._thread + offset) == self._helpers.pid

    def _word(self, address: int, size: int = 4) -> int | None:
        """Return the little-endian number of `size` bytes at an address; None if it is not
        mapped.
        """
        try:
            return int.from_bytes(self._target.read(address, size), "little")
        except TargetError:
            return None
