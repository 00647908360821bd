"""Child processes that die with kinst, and their byte streams.

Even kill -9 of kinst leaves nothing on the host: the kernel kills each child when its parent dies
(prctl(2), PR_SET_PDEATHSIG), and a child's memory (memory.py) and streams (sockets.py) are
inherited descriptors, not named files.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kinst.core.errors import TargetError
from kinst.wire.sockets import wait_until_ready

# A simple command: a shell can execute it in its own process, so that its process id is $target.
PLAIN_COMMAND = re.compile(r"[\w@%+:,./-]+( +[\w@%+=:,./-]+)*")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_QUEUE_LIMIT = 16 << 20
_MOST_DRAINED = 4 << 20  # bytes to read from one stream before the others are read


def boot_id() -> str:
    """Return an id that changes at each boot of the host: proc(5), random/boot_id."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def find_program(name: str, package: str) -> str:
    """Return the path of a program. If it is not installed, raise a TargetError that names its
    package."""
    path = shutil.which(name)
    if path is None:
        raise TargetError(f"{name} not found", f"apt-get install {package}")
    return path


_T = TypeVar("_T")


class _Spawner:
    """A thread that starts child processes and lives as long as this process.

    The kernel kills a child when the thread that forked it ends (PR_SET_PDEATHSIG). So a
    short-lived thread must not fork children.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = 0

    def run(self, make: Callable[[], _T]) -> _T:
        """Call make() in the spawning thread; return its result or raise its exception."""
        results: list[_T] = []
        failed: list[BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                results.append(make())
            except BaseException as error:
                failed.append(error)
            done.set()

        with self._lock:
            if self._thread is None or self._process != os.getpid():  # threads do not survive fork
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._loop, name="kinst-spawn", daemon=True)
                self._thread.start()
        self._work.put(work)
        done.wait()
        if failed:
            raise failed[0]
        return results[0]

    def _loop(self) -> None:
        while True:
            self._work.get()()


_SPAWNER = _Spawner()


def in_lasting_thread(make: Callable[[], _T]) -> _T:
    """Call make() in a thread that lives as long as this process, and return the result of make().
    So a child process that make() starts is not killed when the calling thread ends."""
    if threading.current_thread() is threading.main_thread():
        return make()
    return _SPAWNER.run(make)


# Number of setgroups(2) by os.uname().machine; other machines use the number of asm-generic.
_SETGROUPS = {"x86_64": 116}
_GENERIC_SETGROUPS = 159
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_FILTER_MODE = 2


class _FilterProgram(ctypes.Structure):
    """The kernel's struct sock_fprog (linux/filter.h)."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _ignore_setgroups() -> None:
    """Make setgroups(2) do nothing and report success, from now on, in this process and its
    children.

    Some programs insist on changing their groups, which only root can do. A filter of system calls
    (seccomp(2)) answers setgroups with success, and lets all other calls through.
    """
    number = _SETGROUPS.get(os.uname().machine, _GENERIC_SETGROUPS)
    instructions = (
        (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000), (0x06, 0, 0, 0x7FFF0000),
    )  # fmt: skip
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
    data = ctypes.create_string_buffer(code, len(code))
    program = _FilterProgram(len(instructions), ctypes.addressof(data))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _LIBC.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process, a forked child, when its parent ends. End it if the parent
    has ended already.

    Args:
        parent: process id of the parent.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo die_with_parent() in this process."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def _started(
    argv: Sequence[str], inherit: Sequence[int], stderr: int, keeps_groups: bool
) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent(parent)
        if keeps_groups:
            _ignore_setgroups()

    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=tuple(inherit),
            start_new_session=True,
            preexec_fn=prepare,
        )
    except OSError as error:
        raise TargetError(f"{argv[0]} cannot be started: {error.strerror}") from error


class Child:
    """A child process that is killed when kinst ends. Ctrl-C at the terminal does not reach it."""

    def __init__(
        self,
        argv: Sequence[str],
        inherit: Sequence[int],
        stderr: int,
        *,
        keeps_groups: bool = False,
    ) -> None:
        """Start the child process.

        Args:
            argv: program and arguments.
            inherit: file descriptors that the child keeps.
            stderr: file descriptor for the child's standard error.
            keeps_groups: whether the child keeps its groups: setgroups(2) then does nothing in it,
                and reports success.

        Raises:
            TargetError: the process cannot be started.
        """
        self._process = in_lasting_thread(lambda: _started(argv, inherit, stderr, keeps_groups))
        self.pid = self._process.pid
        self.exit_fd = os.pidfd_open(self.pid)

    def status(self) -> int | None:
        """Return the exit status of the child process, or minus the signal that ended it; None
        while it runs."""
        return self._process.poll()

    def end(self, grace: float = 0.0) -> int:
        """Wait up to `grace` seconds for the child process to end, then kill it. Return its exit
        status, or minus the signal that ended it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        if self._process.poll() is None:
            self._process.kill()
        status = self._process.wait()
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1
        return status


class Pump:
    """A thread that reads several streams into a queue as data arrives, so that a sender never has
    to wait for kinst.

    Args:
        streams: the streams, by name.
        last: name of the stream whose data is queued last: after all data that arrived before it on
            the other streams.
    """

    def __init__(self, streams: Mapping[str, socket.socket], last: str) -> None:
        self._streams = dict(streams)
        self._order = [name for name in streams if name != last]
        self._last = last
        self._lock = threading.Lock()
        self._queue: deque[tuple[str, bytes]] = deque()
        self._queued = 0
        self._bell, self._bell_far = socket.socketpair()
        for sock in (*self._streams.values(), self._bell, self._bell_far):
            sock.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="kinst-pump", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return a file descriptor that is readable when take() has data to return."""
        return self._bell.fileno()

    def take(self) -> list[tuple[str, bytes]]:
        """Return the data that has arrived on the streams since the last call, as (stream, bytes)
        in order. Empty bytes mean that the stream has ended."""
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)
        with self._lock:
            arrived = list(self._queue)
            self._queue.clear()
            self._queued = 0
        return arrived

    def send(self, name: str, data: bytes, timeout: float = 30.0) -> None:
        """Write data to the stream with this name. Raises TargetError if the stream is closed, or
        has not accepted all of the data within `timeout` seconds because the guest does not read.
        """
        sock = self._streams[name]
        deadline = time.monotonic() + timeout
        while data:
            try:
                data = data[sock.send(data) :]
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0 or not wait_until_ready([], [sock], left)[1]:
                    raise TargetError(f"the guest does not read its {name}") from None
            except OSError as error:
                raise TargetError(f"the guest's {name} is closed") from error

    def close(self) -> None:
        """Stop the thread and close all streams."""
        for sock in self._streams.values():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(2.0)
        for sock in (*self._streams.values(), self._bell, self._bell_far):
            sock.close()

    def _put(self, name: str, data: bytes) -> None:
        with self._lock:
            self._queue.append((name, data))
            self._queued += len(data)
        with contextlib.suppress(OSError):
            self._bell_far.send(b"!")

    def _run(self) -> None:
        alive = dict(self._streams)
        while alive:
            while self._queued > _QUEUE_LIMIT:  # let the sender wait instead of filling memory
                time.sleep(0.01)
            wait_until_ready(list(alive.values()))
            # The stream `last` is read first and queued last: by then, earlier data of the other
            # streams has arrived.
            arrived = {
                name: taken
                for name in (self._last, *self._order)
                if name in alive and (taken := _drain(alive[name])) is not None
            }
            for name in (*self._order, self._last):
                data, ended = arrived.get(name, (b"", False))
                if data:
                    self._put(name, data)
                if ended:
                    del alive[name]
                    self._put(name, b"")


def _drain(sock: socket.socket) -> tuple[bytes, bool] | None:
    """Return (data that has arrived, whether the stream has ended); None if nothing has arrived.

    At most _MOST_DRAINED bytes are read, since a sender may write faster than kinst reads. A socket
    holds far less, so everything that was sent before the call is returned."""
    out = bytearray()
    while len(out) < _MOST_DRAINED:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return (bytes(out), False) if out else None
        except OSError:
            return bytes(out), True
        if not data:
            return bytes(out), True
        out += data
    return bytes(out), False
