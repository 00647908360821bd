"""Packets of the GDB remote serial protocol: encoding, decoding and stop replies.

Source: "Debugging with GDB", appendix "GDB Remote Serial Protocol": "Overview" (escapes, run-length
encoding, checksums) and "Stop Reply Packets".

Tested by tests/fuzz/test_stubs.py and tests/wire/test_rsp.py."""

from __future__ import annotations

import re

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError

_NEEDS_ESCAPE = re.compile(rb"[#$}*]")


@dataclass(frozen=True, slots=True)
class StopReply:
    """A stub's reply that says why the machine has stopped or ended.

    Attributes:
        kind: "stopped" or "exited".
        signal: the stub's signal number if stopped, the exit status if exited.
        thread: the stub's name of the thread that stopped, "" if the reply names none.
    """

    kind: str
    signal: int
    thread: str = ""


def frame(payload: bytes) -> bytes:
    """Return the packet for a payload, with escapes and checksum."""
    body = _NEEDS_ESCAPE.sub(lambda m: b"}" + bytes((m[0][0] ^ 0x20,)), payload)
    return b"$%b#%02x" % (body, sum(body) & 0xFF)


def unframe(body: bytes) -> bytes:
    """Return the payload of a received packet, with escapes and run-length encoding undone.

    Args:
        body: the packet's bytes between $ and #.
    """
    if b"}" not in body and b"*" not in body:
        return body
    out = bytearray()
    at = 0
    while at < len(body):
        byte = body[at]
        if byte == 0x7D and at + 1 < len(body):
            out.append(body[at + 1] ^ 0x20)
            at += 2
        elif byte == 0x2A and out and at + 1 < len(body):
            out += out[-1:] * (body[at + 1] - 29)
            at += 2
        else:
            out.append(byte)
            at += 1
    return bytes(out)


def parse_stop(packet: bytes) -> StopReply:
    """Parse a stop reply (a T, S, W or X packet). Raises TargetError if the packet is malformed."""
    kind, text = packet[:1], packet[1:].decode("ascii", "replace")
    try:
        if kind in b"WX":
            return StopReply("exited", int(text.partition(";")[0] or "0", 16))
        fields = dict(part.split(":", 1) for part in text[2:].split(";") if ":" in part)
        return StopReply("stopped", int(text[:2], 16), fields.get("thread", ""))
    except ValueError as error:
        raise TargetError(f"the GDB stub sent an invalid stop reply: {text!r}") from error


def unhex(reply: bytes) -> bytes:
    """Return the bytes of a reply in hexadecimal; b"" if the reply is not hexadecimal."""
    if len(reply) % 2:
        return b""
    try:
        return bytes.fromhex(reply.decode("ascii", "replace"))
    except ValueError:
        return b""
