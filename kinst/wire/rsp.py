"""Client of the GDB remote serial protocol: one connection to a stub, in all-stop mode.

Several requests can be sent together, and their replies collected in order. This cannot deadlock,
since replies are read while requests are sent.

Source: "Debugging with GDB", appendix "GDB Remote Serial Protocol"; for Qqemu.*, the QEMU manual,
"GDB usage"."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError, UnmappedError
from kinst.wire.packets import StopReply, frame, parse_stop, unframe, unhex
from kinst.wire.sockets import wait_until_ready

_FEATURES = b"qSupported:swbreak+;hwbreak+;vContSupported+;xmlRegisters=i386"
_PHYSICAL, _VIRTUAL = b"Qqemu.PhyMemMode:1", b"Qqemu.PhyMemMode:0"
_QEMU = b"qqemu.sstepbits"  # only QEMU's stub knows this request
# Ends a packet that another client left unfinished, wherever in the packet the stub is (QEMU's
# gdb_read_byte(); every stub ignores bytes outside of a packet).
_END_OF_ANY = b"#00#00"
_DONE = re.compile(rb"(?:\+?\$OK#9a)+")
_NO_PROGRESS = 30.0  # seconds; QEMU on a busy host may take some
_GOES_ON = 0.5  # seconds without a reply after which a resumed machine is taken to run
_MOST_ASKED = 1 << 18  # bytes of a packet, even if the stub offers more
_MOST_INPUT = 4 * _MOST_ASKED  # bytes of a packet that the stub sends
_MOST_THREADS = 1 << 13
_THREAD_ID = re.compile(r"-?[0-9a-fA-F]+|p-?[0-9a-fA-F]+(\.-?[0-9a-fA-F]+)?")
_MOST_STOPS = 64  # stop replies in a row, without a request in between
_MOST_LINES = 64  # packets of a monitor's answer


def connect(address: str, timeout: float = 5.0) -> socket.socket:
    """Connect to a GDB stub and return the socket.

    Args:
        address: HOST:PORT, :PORT (on this host), or the path of a unix socket; "tcp:" or "unix:" in
            front is accepted, as in gdb.
        timeout: seconds to wait for the connection.

    Raises:
        TargetError: no process answers at the address in that time.
    """
    place = address.removeprefix("tcp:").removeprefix("unix:")
    host, colon, port = place.rpartition(":")
    sock = socket.socket(socket.AF_UNIX)
    try:
        if "/" in place or not colon:
            sock.settimeout(timeout)
            sock.connect(place)
        else:
            if not port.isdecimal() or int(port) > 65535:
                raise TargetError(
                    f"{address}: not an address of a GDB stub",
                    "HOST:PORT, :PORT or a socket's path",
                )
            sock.close()
            host = host.strip("[]") or "127.0.0.1"
            sock = socket.create_connection((host, int(port)), timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        sock.close()
        raise TargetError(
            f"no GDB stub at {address}: {error.strerror or error}",
            "start one first, as with qemu-system-x86_64 -gdb tcp::1234",
        ) from error
    return sock


@dataclass(frozen=True, slots=True)
class Agreed:
    """Protocol features that kinst and a stub have agreed on for a connection.

    Attributes:
        acks: whether packets are acknowledged.
        packet_size: maximum size of a packet in bytes.
        features: the stub's features, by name.
        vcont: the actions of vCont that the stub supports.
        physical: whether addresses of memory are physical.
    """

    acks: bool
    packet_size: int
    features: Mapping[str, str]
    vcont: frozenset[str]
    physical: bool


def greets(sock: socket.socket, seconds: float) -> bool:
    """Ask the stub on a new connection why the machine is stopped, and return whether it answers
    within `seconds`.

    QEMU stops the machine for a new connection. If it has another client, QEMU does not answer
    until that client is gone.
    """
    sock.sendall(_END_OF_ANY + frame(b"?"))
    return bool(wait_until_ready([sock], seconds=seconds)[0])


class Rsp:
    """Client of a GDB stub, on a connected stream socket, which it owns.

    Every method raises TargetError if the stub is gone, answers with an error, or makes no progress
    for half a minute."""

    def __init__(self, sock: socket.socket, *, running: bool = False) -> None:
        """Take over a connected socket, and agree on protocol features with the stub.

        Args:
            running: whether the machine may be running. It is stopped first, because a stub reads
                requests only while the machine is stopped.
        """
        self._begin(sock)
        if running:
            self.interrupt()
            if self.wait_stop(_NO_PROGRESS) is None:
                raise TargetError("the GDB stub does not stop the machine")
        self._handshake()

    def _begin(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._input = bytearray()
        self._packets: deque[bytes] = deque()
        self._stops: deque[StopReply] = deque()
        self._acks = True
        self.closed = False
        self.packet_size = 400
        self.features: dict[str, str] = {}
        self._vcont: set[str] = set()
        self._usual: list[bytes] = []  # requests that give the stub's modes their usual values
        self._selected = ""
        self._physical = False  # whether addresses of memory are physical

    @property
    def agreed(self) -> Agreed:
        """The protocol features that kinst and the stub have agreed on."""
        return Agreed(
            self._acks, self.packet_size, dict(self.features), frozenset(self._vcont),
            self._physical,
        )  # fmt: skip

    @classmethod
    def adopted(cls, descriptor: int, agreed: Agreed) -> Rsp:
        """Return a client for a connection to a GDB stub that another process has made. The other
        process must not use the connection at the same time.

        Nothing is sent, so the machine may be running.

        Args:
            descriptor: file descriptor of the connection; close() closes it.
            agreed: the features that the other process and the stub have agreed on.
        """
        rsp = cls.__new__(cls)
        rsp._begin(socket.socket(fileno=descriptor))
        rsp._acks, rsp.packet_size = agreed.acks, agreed.packet_size
        rsp.features, rsp._vcont = dict(agreed.features), set(agreed.vcont)
        rsp._physical = agreed.physical
        return rsp

    @classmethod
    def idle(cls, sock: socket.socket) -> Rsp:
        """Return a client of a GDB stub for a new connection, without sending anything. Call the
        client's begun() or taken_over() before any other method."""
        rsp = cls.__new__(cls)
        rsp._begin(sock)
        return rsp

    def begun(self) -> Rsp:
        """Agree on protocol features with the GDB stub, and return a new client that uses the same
        connection."""
        return Rsp(self._sock)

    def taken_over(self) -> Rsp:
        """Take over the connection to a GDB stub whose user has ended or has failed, perhaps in the
        middle of a packet. Return a new client that uses the same connection.

        Afterwards the machine is stopped and has no breakpoints. To end an unfinished packet, kinst
        sends bytes that a stub otherwise ignores.
        """
        sock = self._sock
        sock.setblocking(True)
        sock.sendall(b"\x03")
        # If the machine runs, the stub takes the first byte as a request to stop it.
        deadline = time.monotonic() + _NO_PROGRESS
        sock.sendall(_END_OF_ANY)
        while wait_until_ready([sock], seconds=0.1)[0] and time.monotonic() < deadline:
            if not sock.recv(1 << 16):
                break
        rsp = Rsp(sock)
        rsp.clear_breakpoints()
        return rsp

    def forget_selection(self) -> None:
        """Forget which thread the stub has selected, after another process has used the stub."""
        self._selected = ""

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self.closed = True
        self._sock.close()

    def hang_up(self) -> None:
        """Shut down the connection to the stub, also for other processes that have its
        descriptor."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.close()

    def _handshake(self) -> None:
        """Agree on protocol features, and undo modes of the stub that another client may have
        set."""
        self._send_all(_END_OF_ANY)
        reply = self.ask(_FEATURES).decode("ascii", "replace")
        for item in reply.split(";"):
            name, _, value = item.partition("=")
            self.features[name.rstrip("+-?") if not value else name] = value or item[-1:]
        with contextlib.suppress(ValueError):
            size = int(self.features.get("PacketSize", "190"), 16)
            self.packet_size = min(max(64, size), _MOST_ASKED)
        if self.features.get("QStartNoAckMode") == "+" and self.ask(b"QStartNoAckMode") == b"OK":
            self._acks = False
        bits = self.ask(_QEMU).decode("ascii", "replace")
        if bits.startswith("ENABLE="):
            self._usual = [_VIRTUAL, b"Qqemu.sstep=%x" % _sum_of(bits)]
            # QEMU takes the start of a request as the acknowledgement of its last reply, and a
            # byte that reaches it while the machine runs as a request to stop (its gdbstub.c,
            # gdb_read_byte()): so requests can be sent together, and nothing is acknowledged.
            self._acks = False
        reply = self.ask(b"vCont?").decode("ascii", "replace")
        if reply.startswith("vCont"):
            self._vcont = set(reply.split(";")[1:])
        self.pipeline(self._usual)  # a QEMU without one of the modes does not know its request

    # Packets.

    def _receive(self) -> None:
        """Read the bytes that have arrived, and put complete packets and stop replies into their
        queues."""
        try:
            data = self._sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return
        self._input += data
        if not self._acks and (done := _DONE.match(self._input)):
            # Thousands arrive at once when much memory is written.
            self._packets.extend([b"OK"] * self._input.count(b"$", 0, done.end()))
            del self._input[: done.end()]
        if len(self._input) > _MOST_INPUT:
            self.closed = True
            raise TargetError(f"the GDB stub sends more than {_MOST_INPUT >> 10} kB in one packet")
        while (packet := self._cut_packet()) is not None:
            if packet[:1] in (b"T", b"S", b"W", b"X"):
                if len(self._stops) == _MOST_STOPS:
                    raise TargetError("the GDB stub keeps saying that the machine is stopped")
                self._stops.append(parse_stop(packet))
            else:
                self._packets.append(packet)

    def _cut_packet(self) -> bytes | None:
        """Remove the next complete packet from the input and return its payload; None if no packet
        is complete yet. Acknowledgements and notifications before the packet are dropped."""
        while True:
            start = self._input.find(b"$")
            noted = self._input.find(b"%")
            notification = noted >= 0 and (start < 0 or noted < start)
            if notification:
                start = noted
            if start < 0:
                self._input.clear()
                return None
            end = self._input.find(b"#", start)
            if end < 0 or len(self._input) < end + 3:
                del self._input[:start]
                return None
            body = bytes(self._input[start + 1 : end])
            check = bytes(self._input[end + 1 : end + 3])
            del self._input[: end + 3]
            if notification:
                continue
            try:
                good = int(check, 16) == sum(body) & 0xFF
            except ValueError:
                good = False
            if self._acks:
                self._send_all(b"+" if good else b"-")
            elif not good:
                raise TargetError("a packet of the GDB stub was damaged on its way")
            if good:
                return unframe(body)

    def _send_all(self, data: bytes) -> None:
        """Send an acknowledgement or an interrupt, a few bytes that always fit into the socket's
        buffer."""
        try:
            self._sock.send(data)
        except OSError:
            self.closed = True

    def pipeline(self, payloads: Sequence[bytes], timeout: float = _NO_PROGRESS) -> list[bytes]:
        """Send requests together, and return their replies: one for each request, in the same
        order.

        If the stub insists on acknowledgements, requests are sent one by one.

        Args:
            payloads: the requests.
            timeout: seconds without progress after which TargetError is raised.
        """
        if self._acks and len(payloads) > 1:
            return [self.pipeline([payload], timeout)[0] for payload in payloads]
        return self._exchange(b"".join(map(frame, payloads)), len(payloads), timeout)

    def _exchange(self, data: bytes, expect: int, timeout: float) -> list[bytes]:
        out = memoryview(data)
        deadline = time.monotonic() + timeout
        while out or len(self._packets) < expect:
            if self.closed:
                raise TargetError("the GDB stub closed the connection")
            remaining = deadline - time.monotonic()
            readable, writable = wait_until_ready(
                [self._sock], [self._sock] if out else [], max(0.0, remaining)
            )
            if not writable and (not readable or remaining < 0):
                raise TargetError(f"the GDB stub has not answered for {timeout:g} s")
            if writable:
                try:
                    out = out[self._sock.send(out[:65536]) :]
                except BlockingIOError:
                    pass
                except OSError:
                    self.closed = True
            arrived = len(self._packets), len(self._input)
            if readable:
                self._receive()
            # Bytes that are neither a packet nor the beginning of one are no progress.
            if writable or (len(self._packets), len(self._input)) != arrived:
                deadline = time.monotonic() + timeout
        return [self._packets.popleft() for _ in range(expect)]

    def ask(self, payload: bytes) -> bytes:
        """Send a request and return its reply. An empty reply means that the stub does not know the
        request."""
        return self.pipeline([payload])[0]

    def ask_ok(self, payloads: Sequence[bytes], what: str) -> None:
        """Send requests, each of which the stub must answer with OK. Otherwise raise TargetError.

        Args:
            what: what the requests do, for the message "the GDB stub cannot ...".
        """
        _check_ok(self.pipeline(payloads), what)

    # Running and stopping.

    def resume(self, before: Sequence[bytes] = ()) -> None:
        """Let all threads run.

        Args:
            before: requests to send first, in the same write. The stub must answer each with OK.
        """
        packet = b"vCont;c"
        if "c" not in self._vcont:
            packet = b"c"
            before = [*before, b"Hc-1"] if before else [b"Hc-1"]
        self._go([*before], packet, "prepare to run")

    def step(self, thread: str, before: Sequence[bytes] = ()) -> None:
        """Let one thread execute one instruction. If the stub supports it, all other threads stay
        stopped.

        Args:
            before: requests to send first, in the same write. The stub must answer each with OK.
        """
        packet = f"vCont;s:{thread}".encode()
        requests = [*before]
        if "s" not in self._vcont:
            packet = b"s"
            requests.append(f"Hc{thread}".encode())
        self._go(requests, packet, "prepare a step")

    def _go(self, requests: Sequence[bytes], run: bytes, what: str) -> None:
        self._selected = ""
        self._stops.clear()
        if self._acks:
            if requests:
                self.ask_ok(requests, what)
            self._exchange(frame(run), 0, _NO_PROGRESS)
            return
        data = b"".join(map(frame, [*requests, run]))
        for reply in self._exchange(data, len(requests), _NO_PROGRESS):
            if reply != b"OK":
                raise TargetError(f"the GDB stub cannot {what}{_why(reply)}")

    def interrupt(self) -> None:
        """Ask the stub to stop the running machine. A stop reply follows, which wait_stop()
        returns."""
        self._send_all(b"\x03")

    def wait_stop(self, timeout: float) -> StopReply | None:
        """Wait for the next stop reply and return it; None if no stop reply comes within `timeout`
        seconds."""
        deadline = time.monotonic() + timeout
        while not self._stops:
            if self.closed:
                raise TargetError("the GDB stub closed the connection")
            remaining = deadline - time.monotonic()
            if not wait_until_ready([self._sock], seconds=max(0.0, remaining))[0]:
                return None
            self._receive()
            if self._packets:
                refusal = self._packets.popleft()
                raise TargetError(f"the GDB stub does not run the machine{_why(refusal)}")
            if remaining < 0 and not self._stops:
                return None  # only noise arrives, which may never end
        return self._stops.popleft()

    def ask_stopped(self, timeout: float = _NO_PROGRESS) -> StopReply:
        """Ask why the stopped machine is stopped (`?`), and return the stop reply.

        A stop reply that the stub has sent unasked, as QEMU does for a new client, also counts as
        the answer.
        """
        self._exchange(frame(b"?"), 0, timeout)
        reply = self.wait_stop(timeout)
        if reply is None:
            raise TargetError(f"the GDB stub has not said for {timeout:g} s why it is stopped")
        # Both replies may come; let the second arrive before the next request.
        for _ in range(_MOST_STOPS):
            if self.wait_stop(0.05) is None:
                return reply
        raise TargetError("the GDB stub keeps saying that the machine is stopped")

    def clear_breakpoints(self) -> None:
        """Remove all breakpoints and watchpoints of a QEMU whose machine is stopped.

        QEMU removes the breakpoints of the selected CPU when it gets `?` (its gdbstub.c:
        handle_target_halt()). So kinst selects each CPU (Hc) and sends `?`. It selects the first
        CPU last, since a new client expects this CPU to be selected. The stop replies are dropped.
        """
        for thread in reversed(self.threads()):
            self.ask(f"Hc{thread}".encode())
            self._exchange(frame(b"?"), 0, _NO_PROGRESS)
            self.ask(b"qC")
        self._stops.clear()

    def let_go(self, threads: Sequence[str]) -> None:
        """Let the stopped machine run on without this client. The machine must have no breakpoints.

        If any client has ever told QEMU that it supports several processes, QEMU requires the id of
        the process to detach from. The thread names then contain this id.

        Args:
            threads: the stub's thread names, from threads().

        Raises:
            TargetError: the stub refuses, and does not resume the machine either.
        """
        self.pipeline(self._usual)
        processes = {name[1:].partition(".")[0] for name in threads if name[:1] == "p"}
        requests = [f"D;{process}".encode() for process in sorted(processes)] or [b"D"]
        refusals = [reply for reply in self.pipeline(requests) if reply != b"OK"]
        if not refusals:
            return
        try:
            self.resume()
            if self.wait_stop(_GOES_ON) is None:
                return
        except TargetError:
            pass
        raise TargetError(f"the GDB stub does not let the machine go on{_why(refusals[0])}")

    # Threads, breakpoints, memory.

    def threads(self) -> list[str]:
        """Return the stub's names of its threads, in the stub's order. For a machine, these are its
        CPUs."""
        names: list[str] = []
        reply = self.ask(b"qfThreadInfo")
        while reply[:1] == b"m":
            names += _thread_names(reply[1:])
            if len(names) > _MOST_THREADS:
                raise TargetError("the GDB stub's list of threads has no end")
            reply = self.ask(b"qsThreadInfo")
        if not names:
            reply = self.ask(b"qC")
            names = _thread_names(reply[2:]) if reply[:2] == b"QC" and reply[2:] else ["1"]
        return names

    def select_request(self, thread: str) -> list[bytes]:
        """Return the request that makes g, p, P, m and M act on a thread, as a list; [] if the stub
        has selected this thread already."""
        if thread == self._selected:
            return []
        self._selected = thread
        return [f"Hg{thread}".encode()]

    def breakpoint_request(
        self, address: int, size: int, insert: bool, *, hardware: bool = False
    ) -> bytes:
        """Return the request that inserts or removes a breakpoint.

        Args:
            size: bytes of the instruction (the protocol's "kind").
            insert: False to remove the breakpoint.
            hardware: whether the breakpoint is in registers of the processor, not in the code.
        """
        return b"%c%d,%x,%x" % (0x5A if insert else 0x7A, hardware, address, size)

    def set_breakpoint(
        self, address: int, size: int, insert: bool, *, hardware: bool = False
    ) -> None:
        reply = self.ask(self.breakpoint_request(address, size, insert, hardware=hardware))
        if reply == b"":
            kind = "hardware breakpoints (Z1)" if hardware else "software breakpoints (Z0)"
            raise TargetError(f"the GDB stub has no {kind}")
        if reply != b"OK":
            verb = "insert" if insert else "remove"
            raise TargetError(
                f"the GDB stub cannot {verb} a breakpoint at {address:#x}{_why(reply)}"
            )

    def ask_monitor(self, command: str) -> str:
        """Let QEMU's stub pass a command on to QEMU's monitor (qRcmd), and return the monitor's
        answer; "" if the stub does not do this, or is not QEMU's. The machine must be stopped.

        The answer comes in packets that begin with O, and OK ends it.
        """
        if not self._usual:
            return ""
        text = bytearray()
        reply = self.ask(b"qRcmd," + command.encode().hex().encode())
        for _ in range(_MOST_LINES):
            if reply[:1] != b"O" or reply == b"OK":
                return text.decode("ascii", "replace") if reply == b"OK" else ""
            text += unhex(reply[1:])
            (reply,) = self._exchange(b"", 1, _NO_PROGRESS)
        raise TargetError(f"the GDB stub's answer to {command!r} has no end")

    def physical_memory(self) -> bool:
        """Take physical addresses in read_memory() and write_memory() from now on. Return False if
        the stub has no such mode.

        The stub is in this mode only during each access. QEMU keeps the mode for the next client,
        and kinst may be killed at any time.
        """
        self._physical = self.pipeline([_PHYSICAL, _VIRTUAL]) == [b"OK", b"OK"]
        return self._physical

    def _access(self, requests: Sequence[bytes], verb: str) -> Sequence[bytes]:
        """Send requests that read or write memory, and return their replies.

        Args:
            verb: what the requests do, for the message "the GDB stub cannot ... physical memory".
        """
        if not self._physical or not requests:
            return self.pipeline(requests)
        begun, *replies, ended = self.pipeline([_PHYSICAL, *requests, _VIRTUAL])
        if (begun, ended) != (b"OK", b"OK"):
            raise TargetError(f"the GDB stub cannot {verb} physical memory{_why(begun)}")
        return replies

    def read_memory(self, address: int, size: int) -> bytes:
        """Read memory at an address of the selected thread; in physical mode, at a physical
        address. Raises UnmappedError if any of it is not mapped."""
        chunk = max(32, (self.packet_size - 8) // 2)
        places = range(address, address + size, chunk)
        pieces = [(at, min(chunk, address + size - at)) for at in places]
        replies = self._access([b"m%x,%x" % place for place in pieces], "read")
        out = bytearray()
        for (at, length), reply in zip(pieces, replies, strict=True):
            data = unhex(reply)
            if len(data) != length:
                raise UnmappedError(f"{at + len(data):#x} cannot be read: nothing is mapped there")
            out += data
        return bytes(out)

    def write_memory(self, writes: Sequence[tuple[int, bytes]]) -> None:
        """Write (address, bytes) to memory, in order, with as few round trips as possible."""
        chunk = max(16, (self.packet_size - 40) // 2)
        packets = [
            b"M%x,%x:%b" % (at + i, len(data[i : i + chunk]), data[i : i + chunk].hex().encode())
            for at, data in writes
            for i in range(0, len(data), chunk)
        ]
        _check_ok(self._access(packets, "write"), "write memory")


def _thread_names(text: bytes) -> list[str]:
    """Return the names in a stub's list of thread-ids (GDB's manual, "Packets"): hexadecimal
    numbers, some of them with a process id in front.

    Raises TargetError for any other text, because names are shown in errors and sent back to the
    stub."""
    names = text.decode("ascii", "replace").split(",")
    for name in names:
        if not _THREAD_ID.fullmatch(name):
            raise TargetError(f"the GDB stub gives a CPU thread the invalid id {name[:40]!r}")
    return names


def _sum_of(bits: str) -> int:
    """Return the sum of the numbers in NAME=HEX,NAME=HEX,..., the form in which QEMU lists the bits
    of its single-step mode; 0 for any other text."""
    with contextlib.suppress(ValueError):
        return sum(int(one.partition("=")[2], 16) for one in bits.split(","))
    return 0


def _check_ok(replies: Iterable[bytes], what: str) -> None:
    """Raise TargetError if any reply is not OK.

    Args:
        what: what the requests do, for the message "the GDB stub cannot ...".
    """
    for reply in replies:
        if reply != b"OK":
            raise TargetError(f"the GDB stub cannot {what}{_why(reply)}")


def _why(reply: bytes) -> str:
    """Return the end of an error message: what the stub answered."""
    if not reply:
        return ": it does not know the request"
    return f": it answers {reply[:60].decode('ascii', 'replace')!r}"
