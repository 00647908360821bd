"""A program that kinst traces with ptrace(2). kinst starts it (TracedProgram), or it runs already
(AttachedProgram). All of its threads, and the processes that it forks, are traced too.

All ptrace requests for a process must come from one thread of kinst. So each TracedProgram has a
tracing thread, which sleeps in waitpid(2) and does the requests of kinst's other threads. To wake
it, they let a child process of the tracing thread end (_Bell).

Each traced thread has its own gs base, and so its own block of counters. A new thread begins with a
copy of its creator's gs base (clone(2)). So the kernel stops each new thread before its first
instruction (PTRACE_O_TRACECLONE), and this module gives the new thread its own base.

Source: ptrace(2), for the stops and the options.

Tested by tests/wire/test_traced_program.py.
"""

from __future__ import annotations

import errno
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from kinst.core.errors import TargetError
from kinst.core.words import MASK
from kinst.wire.child_process import die_with_parent, outlive_parent
from kinst.wire.other_process import OtherProcess, permitted
from kinst.wire.ptrace import (
    CALL_ARGUMENTS,
    REGISTERS,
    ptrace_request,
    read_blocked,
    read_registers,
    read_state,
    syscall_instruction,
    write_blocked,
    write_registers,
)
from kinst.wire.signal_frame import frame, instructions_of

_CONTINUE, _SET_OPTIONS, _SEIZE, _INTERRUPT, _LISTEN = 7, 0x4200, 0x4206, 0x4207, 0x4208
_TO_CALL = 24  # until a system call begins or ends
_POKE_USER = 6
_DETACH = 17
_GS_BASE = 8 * REGISTERS.index("gs_base")  # offset in struct user (sys/user.h)
# PTRACE_O_*: system calls are told from SIGTRAP; fork, vfork, clone, exec, end of vfork, exit.
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40
_END_WITH_TRACER = 0x100000
_VFORK, _EXEC, _VFORK_DONE, _EXIT, _STOP = 2, 4, 5, 6, 128
_AT_CALL = signal.SIGTRAP | 0x80
_WALL, _OWN_CHILDREN = 0x4000_0000, 0x2000_0000
_STOPPING_SIGNALS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_ERRORS = 4095
_BELOW = 256  # bytes below the stack pointer, beyond the red zone
_BREAKPOINT = b"\xcc"  # int3
_SECONDS = 10.0  # for which kinst waits for threads to stop
_NOT_STARTED = 127  # exit status of a process that could not execute the program

_Result = TypeVar("_Result")


class _Bell:
    """Child process of the tracing thread. When it ends, the tracing thread wakes in waitpid(2)."""

    def __init__(self) -> None:
        inner, self._write = os.pipe()
        try:
            self.pid = os.posix_spawn(
                "/bin/sh", ["sh", "-c", "read line"], {},
                file_actions=[(os.POSIX_SPAWN_DUP2, inner, 0)],
            )  # fmt: skip
        finally:
            os.close(inner)

    def ring(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1


class TracedProgram:
    """A program that runs under ptrace(2). It stays stopped directly after its execve(2) until
    resume() is called.

    Attributes:
        pid: process id of the program.
        process: the program's memory and mappings.
    """

    def __init__(self, words: Sequence[str], path: str, environment: Mapping[str, str]) -> None:
        """Start a program, with this process's standard input, output and error output.

        Args:
            words: the program's name and arguments.
            path: path of the program's file.
            environment: the program's environment.

        Raises:
            TargetError: the program cannot be executed or traced.
        """
        self._open(partial(self._start, words, path, environment))

    def _open(self, begin: Callable[[], None]) -> None:
        """Start the tracing thread.

        Args:
            begin: called in the tracing thread. It starts or attaches the program, and leaves all
                of the program's threads stopped.
        """
        self.pid = 0
        self._bases: Sequence[int] = ()
        self._free: list[int] = []  # indexes of gs bases that no thread has, the lowest last
        self._threads = set[int]()
        self._slots: dict[int, int] = {}  # index of its gs base, by thread
        self._held: dict[int, int] = {}  # request that lets each stopped thread go on, with signal
        self._signals: dict[int, int] = {}
        self._interrupted = set[int]()  # stopped threads at which no event and no signal waits
        self._runs = self._has_run = False
        self._vforked = set[int]()  # threads that wait for a child which shares their memory
        self._status: int | None = None
        self.ended_by = 0  # signal that has ended the program
        self._trouble = ""
        self._ended = threading.Event()
        self.executed = 0  # how often the program, or a process that it forked, executed another
        self._closing = False
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell: _Bell | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._trace, args=(begin, started), daemon=True)
        self._thread.start()
        started.result()
        self.process = OtherProcess(self.pid)

    # For other threads.

    @property
    def trouble(self) -> str:
        """A sentence that says why the counts of this trace are wrong; "" if they are right."""
        return self._trouble

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> int | None:
        """Wait until the program ends, and return its exit status as a shell reports it; None if it
        still runs after `seconds`."""
        return self._status if self._ended.wait(seconds) else None

    def call(self, number: int, *arguments: int | bytes) -> int:
        """Make the stopped program execute a system call, and return the result.

        If kinst is killed meanwhile, the thread that makes the call restores itself
        (wire/signal_frame.py).

        Args:
            number: the system call.
            arguments: its arguments; bytes are copied to the thread's stack, and their address is
                the argument.

        Raises:
            TargetError: the call fails.
        """
        return self._do(lambda: self._call(number, arguments))

    def registers(self) -> list[dict[str, int]]:
        """Return the registers of each stopped thread."""
        return self._do(lambda: [read_registers(tid) for tid in self._held])

    def move(self, places: Mapping[int, int]) -> None:
        """Let each stopped thread whose program counter is in `places` continue at the address to
        which `places` maps it."""

        def moved() -> None:
            for tid in self._held:
                values = read_registers(tid)
                if values["rip"] in places:
                    write_registers(tid, {**values, "rip": places[values["rip"]]})

        self._do(moved)

    def run_to(self, address: int) -> None:
        """Let the program, which has not run yet, run to an address, and stop all of its threads.
        The program ends with kinst if kinst is killed meanwhile.

        Raises TargetError if the program ends before.
        """
        self._do(lambda: self._run_to(address))

    def give_bases(self, bases: Sequence[int]) -> None:
        """Give each stopped thread a gs base from `bases`, and later each new thread a base that no
        other thread has."""

        def give() -> None:
            self._bases = bases
            self._free = list(reversed(range(len(bases))))
            for tid in self._held:
                self._give_base(tid)

        self._do(give)

    def resume(self) -> None:
        """Let all threads run."""
        self._do(self._resume)

    def stop(self) -> None:
        """Stop all threads. Raises TargetError if one of them does not stop."""
        self._do(self._stop)

    def close(self) -> None:
        """If the program has not ended, kill it and the traced processes that it has forked. If it
        has ended, let these processes run on, untraced. Safe to call twice."""
        if self._closing:
            return
        if not self.has_ended:
            for tid in {self.pid, *self._threads}:
                with suppress(ProcessLookupError):
                    os.kill(tid, signal.SIGKILL)
            self._ended.wait(_SECONDS)
        self._end_tracing()

    def _end_tracing(self) -> None:
        """End the tracing thread, which detaches from the stopped threads."""
        self._closing = True
        if self._bell is not None:
            self._bell.ring()
        self._thread.join(_SECONDS)
        self.process.close()

    def _do(self, work: Callable[[], _Result]) -> _Result:
        """Call work() in the tracing thread, and return its result."""
        done: Future[_Result] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._work.put(run)
        if self._bell is not None:
            self._bell.ring()
        while True:
            try:
                return done.result(1.0)
            except TimeoutError:
                if not self._thread.is_alive():
                    raise TargetError(f"kinst does not trace process {self.pid} any more") from None
            except OSError as error:
                raise TargetError(f"process {self.pid} has ended: {error.strerror}") from error

    # The tracing thread.

    def _trace(self, begin: Callable[[], None], started: Future[None]) -> None:
        try:
            begin()
            self._bell = _Bell()
        except BaseException as error:
            self._give_up()
            started.set_exception(error)
            return
        started.set_result(None)
        while not self._closing:
            if self._bell is not None and not self._work.empty():
                self._work.get()()
                continue
            try:
                pid, status = os.waitpid(-1, _WALL | _OWN_CHILDREN)
            except ChildProcessError:
                return
            if self._bell is not None and pid == self._bell.pid:
                self._bell = None if self._closing else _Bell()
            else:
                with suppress(ProcessLookupError):  # killed meanwhile: its end is reported
                    self._handle(pid, status)
        if self._bell is not None:
            self._bell.ring()
        self._detach()

    def _detach(self) -> None:
        """Let each stopped thread run on untraced, with the signal that waits for it."""
        for tid in self._held:
            with suppress(OSError):
                ptrace_request(_DETACH, tid, 0, self._signals.get(tid, 0))

    def _give_up(self) -> None:
        """Kill a program that has been started and cannot be traced."""
        if self.pid:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, _WALL)

    def _start(self, words: Sequence[str], path: str, environment: Mapping[str, str]) -> None:
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self._execute(parent, words, path, environment)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        try:
            ptrace_request(_SEIZE, self.pid, 0, _OPTIONS | _END_WITH_TRACER)
        except OSError as error:
            raise TargetError(f"{path} cannot be traced: {error.strerror}", permitted()) from error
        os.kill(self.pid, signal.SIGCONT)
        while True:
            _, status = os.waitpid(self.pid, _WALL)
            if not os.WIFSTOPPED(status):
                self.pid = 0
                raise TargetError(f"{path} cannot be executed")
            if status >> 16 == _EXEC:
                break
            ptrace_request(_CONTINUE, self.pid)
        # The kernel still sets rax after this stop: go on to the end of the call.
        ptrace_request(_TO_CALL, self.pid)
        _, status = os.waitpid(self.pid, _WALL)
        if not os.WIFSTOPPED(status):
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            self.pid = 0
            raise TargetError(f"{path} was killed when it started (signal {number})")
        self._held = {self.pid: _CONTINUE}
        self._threads = {self.pid}

    def _execute(
        self, parent: int, words: Sequence[str], path: str, environment: Mapping[str, str]
    ) -> None:
        """Execute the program in this process, a child that kinst has forked. Stop first, so that
        kinst can begin to trace this process. If kinst is killed before, the kernel ends this
        process, which would otherwise stay stopped. Never returns."""
        try:
            die_with_parent(parent)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSTOP)
            outlive_parent()  # from here on PTRACE_O_EXITKILL, until kinst clears that option
            os.execve(path, list(words), dict(environment))
        finally:
            os._exit(_NOT_STARTED)

    def _handle(self, pid: int, status: int) -> None:
        """Handle what waitpid(2) has reported of a thread, and let the thread go on."""
        if not os.WIFSTOPPED(status):
            self._forget(pid)
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code
                self.ended_by = max(0, -code)
                self._ended.set()
            return
        number, event = os.WSTOPSIG(status), status >> 16
        request = _CONTINUE
        if pid not in self._threads:
            self._threads.add(pid)
            self._give_base(pid)
        if event == _STOP:
            request = _LISTEN if number in _STOPPING_SIGNALS else _CONTINUE
        if event == _VFORK:
            self._vforked.add(pid)
        elif event == _VFORK_DONE:
            self._vforked.discard(pid)
        elif event == _EXEC:
            # Another program: its code is not planted.
            self._forget(pid)
            ptrace_request(_DETACH, pid)
            self._executed(pid)
            return
        elif event == _EXIT:
            # The thread executes no more of the program's instructions. Its death may be reported
            # only after the program has started other threads.
            self._check_base(pid)
            self._free_base(pid)
        if event == _STOP:
            self._interrupted.add(pid)
        if event or number == _AT_CALL:
            number = 0
        self._held[pid], self._signals[pid] = request, number
        if self._runs or event == _EXIT:  # a thread that was killed ends only if it goes on here
            self._go_on(pid)

    def _executed(self, pid: int) -> None:
        """Note that a traced process has executed another program. kinst no longer traces the
        process."""
        self.executed += 1

    def _go_on(self, tid: int) -> None:
        request, number = self._held.pop(tid), self._signals.pop(tid, 0)
        self._interrupted.discard(tid)
        with suppress(ProcessLookupError):
            ptrace_request(request, tid, 0, number)

    def _forget(self, tid: int) -> None:
        self._threads.discard(tid)
        self._free_base(tid)
        self._held.pop(tid, None)
        self._interrupted.discard(tid)
        self._vforked.discard(tid)

    def _free_base(self, tid: int) -> None:
        slot = self._slots.pop(tid, -1)
        if slot >= 0:
            self._free.append(slot)

    def _give_base(self, tid: int) -> None:
        """Give a stopped thread one of the gs bases from give_bases() that no other thread has. If
        all bases are in use, the counts will be wrong, and `trouble` says so."""
        if not self._bases:
            return
        if not self._free:
            self._trouble = f"the program has more than {len(self._bases)} threads at once"
            return
        slot = self._slots[tid] = self._free.pop()
        ptrace_request(_POKE_USER, tid, _GS_BASE, self._bases[slot])

    def _check_base(self, tid: int) -> None:
        """Check that an ending thread still has the gs base that kinst gave it. If the program has
        changed it, the counts are wrong, and `trouble` says so."""
        slot = self._slots.get(tid, -1)
        if slot >= 0 and read_registers(tid)["gs_base"] != self._bases[slot]:
            self._trouble = "the program uses the register gs itself"

    def _resume(self) -> None:
        if not self._has_run:  # from now on, the program outlives kinst
            ptrace_request(_SET_OPTIONS, self.pid, 0, _OPTIONS)
            self._has_run = True
        self._runs = True
        for tid in list(self._held):
            self._go_on(tid)

    def _run_to(self, address: int) -> None:
        code = self.process.read(address, len(_BREAKPOINT))
        self.process.write(address, _BREAKPOINT)
        self._runs = True
        self._go_on(self.pid)
        while not self.has_ended:
            pid, status = os.waitpid(-1, _WALL | _OWN_CHILDREN)
            if self._bell is not None and pid == self._bell.pid:
                self._bell = _Bell()
            elif pid == self.pid and status >> 8 == signal.SIGTRAP:
                registers = read_registers(pid)
                if registers["rip"] == address + len(_BREAKPOINT):
                    write_registers(pid, {**registers, "rip": address})
                    self._held[pid], self._signals[pid] = _CONTINUE, 0
                    break
                self._handle(pid, status)
            else:
                with suppress(ProcessLookupError):
                    self._handle(pid, status)
        if self.has_ended:
            raise TargetError(f"the program ended before its entry (status {self._status})")
        self.process.write(address, code)
        self._stop()

    def _stop(self) -> None:
        if not self._runs or self.has_ended:
            return
        self._runs = False
        deadline = time.monotonic() + _SECONDS
        for tid in self._threads:
            with suppress(OSError):
                ptrace_request(_INTERRUPT, tid)
        while self._threads - {*self._held} - self._vforked and not self.has_ended:
            try:
                pid, status = os.waitpid(-1, _WALL | _OWN_CHILDREN | os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                if time.monotonic() > deadline:
                    self._resume()
                    raise TargetError(f"a thread of process {self.pid} does not stop")
                time.sleep(0.0005)
            elif self._bell is not None and pid == self._bell.pid:
                self._bell = _Bell()
            else:
                with suppress(ProcessLookupError):
                    self._handle(pid, status)

    def _call(self, number: int, arguments: Sequence[int | bytes]) -> int:
        tid = self._caller()
        before, blocked = read_registers(tid), read_blocked(tid)
        code, stack = self._call_frame(tid, before, blocked)
        values = []
        for one in arguments:
            if isinstance(one, bytes):
                place = (stack - _BELOW - len(one)) & -16
                self.process.write(place, one)
                values.append(place)
            else:
                values.append(one)
        registers = {**before, **dict(zip(CALL_ARGUMENTS, values, strict=False))}
        registers |= {"rip": code, "rsp": stack, "rax": number, "orig_rax": MASK}
        write_blocked(tid, MASK)
        try:
            write_registers(tid, registers)
            for _ in ("the call begins", "the call ends"):
                self._until(tid, _TO_CALL, _AT_CALL)
            result = read_registers(tid)["rax"]
            # The kernel restarts the system call that the thread was in only from such a stop.
            ptrace_request(_INTERRUPT, tid)
            self._until(tid, _CONTINUE, _STOP << 8)
            write_registers(tid, before)
        finally:
            with suppress(OSError):  # the thread has ended
                write_blocked(tid, blocked)
        if result > MASK - _ERRORS:
            why = os.strerror(-(result - (1 << 64)))
            raise TargetError(f"process {self.pid} cannot make a system call for kinst: {why}")
        return result

    def _call_frame(self, tid: int, registers: Mapping[str, int], blocked: int) -> tuple[int, int]:
        """Return the address of a system call instruction, and the stack pointer for the call.

        If the process has the code that wire/signal_frame.py needs, write a signal frame and return
        its address as the stack pointer. By the frame, the thread restores itself if kinst is
        killed. Without that code, return the thread's present stack pointer.

        Args:
            tid: the thread that will make the call.
            registers: the thread's registers.
            blocked: the thread's signal mask.
        """
        instructions = instructions_of(self.process)
        if instructions is not None:
            code, back = instructions
            stack, data = frame(registers, read_state(tid), blocked, back)
            self.process.write(stack, data)
            return code, stack
        found = syscall_instruction(self.process)
        if found is None:
            raise TargetError(
                f"process {self.pid} has no vdso", "kinst needs one to make system calls in it"
            )
        return found, registers["rsp"]

    def _caller(self) -> int:
        """Return the id of a stopped thread that can execute system calls for kinst; preferably a
        thread at which no event and no signal waits."""
        threads = sorted(self._held, key=lambda tid: (tid not in self._interrupted, tid))
        if not threads:
            raise TargetError(f"process {self.pid} has no thread that is stopped")
        return threads[0]

    def _until(self, tid: int, request: int, stop: int) -> None:
        """Let a stopped thread run until it stops for a given reason.

        Args:
            tid: id of the thread.
            request: the request of ptrace(2) that lets it run.
            stop: the reason: the number of a signal, or of an event of ptrace(2) (PTRACE_EVENT_*)
                times 256.
        """
        while True:
            ptrace_request(request, tid)
            _, status = os.waitpid(tid, _WALL)
            if not os.WIFSTOPPED(status):
                raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
            if stop in (os.WSTOPSIG(status), status >> 8 & 0xFF00):
                return


class AttachedProgram(TracedProgram):
    """A program that kinst has not started. Its threads are stopped until resume(), and it runs on
    after close().

    Attributes:
        pid: process id of the program.
        process: the program's memory and mappings.
    """

    def __init__(self, pid: int) -> None:
        """Stop all threads of a process. Raises TargetError if it cannot be traced."""
        OtherProcess(pid)
        self._open(partial(self._attach, pid))

    def _attach(self, pid: int) -> None:
        self.pid, self._runs, self._has_run = pid, True, True
        while more := [tid for tid in self._tasks() if tid not in self._threads]:
            for tid in more:
                self._seize(tid)
        if not self._threads:
            raise TargetError(f"process {pid} has ended")
        self._stop()
        while self._held and not self._interrupted:
            # Threads at an event or a signal: let one of them come to the interruption.
            tid = next(iter(self._held))
            self._go_on(tid)
            ptrace_request(_INTERRUPT, tid)
            while tid in self._threads and tid not in self._held:
                self._handle(*os.waitpid(-1, _WALL | _OWN_CHILDREN))
        if self.has_ended or not self._held:
            raise TargetError(f"process {pid} has ended")
        if any(read_registers(tid)["gs_base"] for tid in self._held):
            raise TargetError(
                f"process {pid} uses the register gs itself",
                "kinst finds counters by it; a kinst that was killed leaves it set",
            )

    def _tasks(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(f"/proc/{self.pid}/task")]
        except OSError as error:
            raise TargetError(f"process {self.pid} has ended") from error

    def _seize(self, tid: int) -> None:
        """Trace a thread of the program. Raises TargetError if another process traces it."""
        try:
            ptrace_request(_SEIZE, tid, 0, _OPTIONS)
        except ProcessLookupError:
            return  # it has ended
        except OSError as error:
            try:
                tracer = OtherProcess(tid).tracer
            except TargetError:
                return
            # The kernel names kinst's thread for threads that traced threads have created.
            if tracer != threading.get_native_id():
                why = f"thread {tracer} traces it" if tracer else error.strerror
                hint = "end that first" if tracer else permitted()
                raise TargetError(f"process {self.pid} cannot be traced: {why}", hint) from error
        self._threads.add(tid)

    def _give_up(self) -> None:
        """Let the stopped threads run on, untraced. kinst's tracing thread ends after this call,
        and the kernel then detaches it from all other threads."""
        self._detach()

    def _executed(self, pid: int) -> None:
        super()._executed(pid)
        if pid == self.pid:  # kinst is not told of its end
            self._status = 0
            self._ended.set()

    def close(self) -> None:
        """Let the program run on, untraced. Safe to call twice."""
        if self._closing:
            return
        with suppress(TargetError):
            self.stop()
            self._do(self._take_bases)
        self._end_tracing()

    def _take_bases(self) -> None:
        """Set the gs base of each stopped thread to 0, its value before the trace.

        A thread that is still in a trampoline then counts in the block of counters that belongs to
        gs base 0. The memory of this block is still mapped.
        """
        for tid in self._held:
            if tid in self._slots:
                ptrace_request(_POKE_USER, tid, _GS_BASE, 0)
