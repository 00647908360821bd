"""A GDB stub to talk to: answers from a table, on a thread, over a socket pair.

Written from the protocol's description, independently of kinst's client.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping

Answer = bytes | Callable[[bytes], bytes]


class StubDouble:
    """The stub.

    Attributes:
        answers: request (or the start of one) -> reply; the longest match counts, no match is the
            empty reply.
        requests: received so far, in order.
        acks: wait for none, but send + for each packet until QStartNoAckMode is agreed.
    """

    def __init__(self, answers: Mapping[bytes, Answer], greeting: bytes = b"") -> None:
        self.answers = dict(answers)
        self.requests: list[bytes] = []
        self.acked = 0
        self.interrupts = 0
        self.ours, self.theirs = socket.socketpair()
        if greeting:
            self.send(greeting)
        self._no_ack = False
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def send(self, body: bytes) -> None:
        self.theirs.sendall(b"$" + body + b"#" + f"{sum(body) % 256:02x}".encode())

    def close(self) -> None:
        self.theirs.close()

    def _serve(self) -> None:
        data = b""
        while True:
            try:
                more = self.theirs.recv(65536)
            except OSError:
                return
            if not more:
                return
            data += more
            while data:
                if data[:1] == b"+":
                    self.acked += 1
                    data = data[1:]
                elif data[:1] == b"\x03":
                    self.interrupts += 1
                    data = data[1:]
                    self._answer(b"\x03")
                elif data[:1] == b"$" and b"#" in data and len(data) >= data.index(b"#") + 3:
                    end = data.index(b"#")
                    body, check = data[1:end], data[end + 1 : end + 3]
                    assert int(check, 16) == sum(body) % 256
                    data = data[end + 3 :]
                    if not self._no_ack:
                        self.theirs.sendall(b"+")
                    self.requests.append(body)
                    self._answer(body)
                elif data[:1] != b"$":
                    data = data[1:]  # noise, such as the end of a packet that was not begun
                else:
                    break

    def _answer(self, body: bytes) -> None:
        matches = [key for key in self.answers if body.startswith(key)]
        answer = self.answers[max(matches, key=len)] if matches else b""
        reply = answer(body) if callable(answer) else answer
        if reply != b"<silence>":
            self.send(reply)
        if body == b"QStartNoAckMode" and reply == b"OK":
            self._no_ack = True
