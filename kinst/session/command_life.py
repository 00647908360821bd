"""Watch of the command of -c in the guest, from its execve(2) to its exit.

In the guest, kinst's helper processes (a shell script) start the command, wait for it and report
its status. These helpers sleep while the command lives. The machine stops at the command's execve,
and kinst plants the probes at that moment. After that, kinst sees in memory that the command has
exited, before the command's parent is told. So the probes count only the command and the kernel,
without a predicate that tests the process id.

Tested by tests/vm/language/test_command_alone.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kinst.core.errors import TargetError
from kinst.core.machine import CommandEnded, Gone, Helpers, MachineEvent, Stopped
from kinst.core.system import CommandSpan, NextCall
from kinst.core.threads_inside import all_threads
from kinst.session.host_clauses import read_access
from kinst.session.values import StartedMachine

START_SECONDS = 60.0  # until the command's execve, on a busy host
END_SECONDS = 60.0  # until its status is known, and all of its output has come
MOST_CHILDREN = 16  # generations that are followed
PIECE = 0.5  # seconds of one wait
_MOST_STOPS = 300  # system calls and interrupts of the prepared process before its execve


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
        self._thread = 0  # address of the command's first thread, 0 if kinst does not follow it
        self._held = False  # whether the helpers wait

    def begin(self, resume: Callable[[], None]) -> MachineEvent | None:
        """Run the machine until the command is about to execute its program, and stop the machine
        there.

        Returns the machine's event if the machine or the command ends too early, otherwise None.

        Args:
            resume: lets the machine run.
        """
        self._held = True
        self._helpers.start_alone()
        call = self._span.next_call if self._target.abilities.watches else None
        if call is not None and (thread := self._prepared_thread(call)):
            return self._watch_for_call(thread, call, resume)
        return self._break_at_execve(resume)

    def _prepared_thread(self, call: NextCall) -> int:
        """Return the address of the structure of the prepared command's thread, 0 if it is not
        found."""
        for thread in all_threads(self._target.read, call.threads):
            if self._has_command_pid(thread.address):
                return thread.address
        return 0

    def _watch_for_call(
        self, thread: int, call: NextCall, resume: Callable[[], None]
    ) -> MachineEvent | None:
        """Run the machine until the prepared thread calls execve(2), and stop the machine there.

        This does for begin() what _break_at_execve() does, with watchpoints instead of a
        breakpoint. The prepared process writes its own name immediately before execve(2). So kinst
        first watches the name in the thread's structure. After the write to it, kinst watches the
        word with the number of the thread's system call until this is the number of execve(2).

        Args:
            thread: address of the structure of the prepared command's thread.
            resume: lets the machine run.
        """
        target, deadline = self._target, time.monotonic() + START_SECONDS
        number = (self._word(thread + call.threads.stack, 8) or 0) + call.number
        target.watch([(thread + call.name, call.name_size)])
        resume()
        for stop in range(_MOST_STOPS):
            event = self._stopped(deadline)
            if not isinstance(event, Stopped):
                if not isinstance(event, Gone):
                    target.stop()
                    target.unwatch()
                return event
            if stop == 0:
                target.unwatch()
                target.watch([(number, 4)])
            elif self._word(number) == call.execve:
                target.unwatch()
                self._thread = thread
                return None
            resume()
        target.stop()
        target.unwatch()
        return self._break_at_execve(resume)

    def _stopped(self, deadline: float) -> MachineEvent | None:
        """Wait until the machine stops or ends, or the command ends. Returns the event, None if the
        deadline passes first."""
        while (left := deadline - time.monotonic()) > 0:
            event = self._target.wait(min(left, PIECE))
            if event is not None:
                return event
        return None

    def _break_at_execve(self, resume: Callable[[], None]) -> MachineEvent | None:
        """Run the stopped machine to a breakpoint at the command's execve, and remove the
        breakpoint.

        If the machine or the command ends before the execve, returns that event. Otherwise
        returns None: the command is at its execve, or START_SECONDS have passed.

        Args:
            resume: lets the machine run; also called after another process has reached the
                breakpoint.
        """
        machine, target = self._machine, self._target
        facts, deadline = machine.facts, time.monotonic() + START_SECONDS
        target.insert_breakpoint(self._span.entry)
        resume()
        event = self._stopped(deadline)
        while isinstance(event, Stopped):
            if read_access(target, facts, event.cpu, facts.builtins["pid"]) == self._helpers.pid:
                thread = read_access(target, facts, event.cpu, facts.builtins["curthread"])
                self._thread = thread if isinstance(thread, int) else 0
                break
            target.step_over(event.cpu, event.pc)
            resume()
            event = self._stopped(deadline)
        if not isinstance(event, Gone):
            target.stop()
            target.remove_breakpoint(self._span.entry)
        return None if isinstance(event, Stopped) else event

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
        if not state or (span.running >= 0 and self._word(thread + span.running, 1)):
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
        runs = span.running >= 0 and self._word(thread + span.running, 1)
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
        return self._has_command_pid(self._thread)

    def _has_command_pid(self, thread: int) -> bool:
        """Return whether the thread with this structure belongs to the command's process."""
        offset = self._machine.facts.builtins["pid"].offsets[-1]
        return self._word(thread + offset) == self._helpers.pid

    def _word(self, address: int, size: int = 4) -> int | None:
        """Return the little-endian number of `size` bytes at an address; None if it is not
        mapped.
        """
        try:
            return int.from_bytes(self._target.read(address, size), "little")
        except TargetError:
            return None
