"""A companion: a process that kinst forks, that serves kinst's requests and outlives kinst. When
the stream of requests ends, the companion knows that kinst has ended, even by kill -9.

Messages are pickled values with their length in front. A file descriptor may be sent with a message
(unix(7), SCM_RIGHTS).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from kinst.core.errors import KinstError, TargetError

_LENGTH = struct.Struct("<Q")
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT)


class Channel:
    """One end of a stream of messages between kinst and its companion."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, value: object, descriptor: int = -1) -> None:
        """Send a message, with a file descriptor if `descriptor` is not -1.

        If the message can be sent only in part (because of a signal, or too little memory), the
        stream is shut down. Otherwise the other end would take the next message for the missing
        part.

        Raises:
            OSError: the other end is closed.
        """
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        head = _LENGTH.pack(len(data))
        try:
            if descriptor < 0:
                self._sock.sendall(head)
            else:
                socket.send_fds(self._sock, [head], [descriptor])
            self._sock.sendall(data)
        except BaseException:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            raise

    def receive(self) -> tuple[Any, int] | None:
        """Receive a message and return (value, file descriptor or -1); None if the stream has
        ended, even within a message."""
        descriptor = -1
        try:
            head, numbers, _, _ = socket.recv_fds(self._sock, _LENGTH.size, 1)
            if numbers:
                descriptor = numbers[0]
            head += self._all(_LENGTH.size - len(head)) if head else b""
            if len(head) < _LENGTH.size:
                return None
            (size,) = _LENGTH.unpack(head)
            data = self._all(size)
        except OSError:
            return None
        return (pickle.loads(data), descriptor) if len(data) == size else None

    def _all(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            part = self._sock.recv(min(size - len(out), 1 << 20))
            if not part:
                break
            out += part
        return bytes(out)

    def exhaust(self) -> None:
        """Tell the other end that no more messages come, then drop all data that arrives until the
        other end is closed. A companion that has failed calls this to wait until kinst has ended.
        """
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            while self._sock.recv(1 << 16):
                pass

    def close(self) -> None:
        self._sock.close()


class Companion:
    """kinst's side of a companion process: starts it, sends messages, receives answers."""

    def __init__(self, serve: Callable[[Channel], None], descriptors: Sequence[int] = ()) -> None:
        """Fork the companion process.

        Args:
            serve: called in the companion with its end of the stream. The companion ends when this
                function returns.
            descriptors: file descriptors that the companion keeps.
        """
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            _be_companion(serve, theirs, (theirs.fileno(), *descriptors))
        theirs.close()
        self._channel = Channel(ours)

    def tell(self, *message: object) -> None:
        """Send the companion a message that needs no answer.

        The message arrives even if kinst ends directly after this call.

        Raises:
            TargetError: the companion has ended.
        """
        try:
            self._channel.send(message)
        except OSError as error:
            raise TargetError("kinst's guardian process is gone") from error

    def ask(self, *message: object) -> tuple[Any, int]:
        """Send the companion a message and return its answer: (value, file descriptor or -1).

        Raises:
            KinstError: the companion's answer is this error.
            TargetError: the companion has ended.
        """
        self.tell(*message)
        answer = self._channel.receive()
        if answer is None:
            raise TargetError("kinst's guardian process is gone")
        value, descriptor = answer
        if isinstance(value, KinstError):
            raise value
        return value, descriptor

    def close(self) -> bool:
        """End the stream to the companion and wait until the companion has ended. Return whether it
        ended with status 0."""
        self._channel.close()
        with contextlib.suppress(OSError):
            _, status = os.waitpid(self.pid, 0)
            return status == 0
        return True


def _be_companion(
    serve: Callable[[Channel], None], theirs: socket.socket, descriptors: Sequence[int]
) -> None:
    """Run the companion in the forked child: serve requests, then exit. Never returns.

    The child starts a new session, so that Ctrl-C reaches only kinst. It closes every file that it
    does not need. Otherwise, if kinst writes to a pipe and ends, the reader of the pipe would not
    see its end.
    """
    status = 1
    try:
        os.setsid()
        for ignored in _IGNORED:
            signal.signal(ignored, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in descriptors:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        serve(Channel(theirs))
        status = 0
    except BaseException as error:  # the child must never run on as a second kinst
        keep_traceback(error)
    finally:
        os._exit(status)


def keep_traceback(error: BaseException) -> None:
    """Append the traceback of an error to /tmp/kinst-guardian.txt if KINST_TRACEBACK is set. A
    companion has no standard error to print it to."""
    if os.environ.get("KINST_TRACEBACK"):
        with contextlib.suppress(OSError), open("/tmp/kinst-guardian.txt", "a") as file:
            traceback.print_exception(error, file=file)
