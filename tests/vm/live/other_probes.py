"""The kernel's own ways to probe a function, to attach and detach beside kinst's.

Runs as root in a guest (live_in_guest.py).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path

from kinst.wire.kernel_module import load_module, unload_module

TRACEFS = Path("/sys/kernel/tracing")
LIVEPATCH = Path("/sys/kernel/livepatch/patched")
_BPF, _PERF_EVENT_OPEN = 321, 298  # system calls of amd64
_PROG_LOAD, _RAW_TRACEPOINT_OPEN = 5, 17  # of bpf(2)
_KPROBE, _TRACING, _FENTRY = 2, 26, 24
_SET_BPF, _ENABLE = 0x40042408, 0x2400
# A program that returns 0.
_CODE = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
_FUNC = 12  # BTF_KIND_FUNC


def write(*settings: tuple[str, str]) -> None:
    if not (TRACEFS / "kprobe_events").exists():
        subprocess.run(["mount", "-t", "tracefs", "none", TRACEFS], check=True)
    for name, value in settings:
        (TRACEFS / name).write_text(value + "\n")


class KprobeEvent:
    """A kprobe at a function, or within it."""

    def __init__(self, place: str) -> None:
        self.place = place

    def on(self) -> None:
        write(("kprobe_events", f"p:other {self.place}"), ("events/kprobes/other/enable", "1"))

    def off(self) -> None:
        write(("events/kprobes/other/enable", "0"), ("kprobe_events", ""))


class FunctionTracer:
    def __init__(self, function: str) -> None:
        self.function = function

    def on(self) -> None:
        write(("set_ftrace_filter", self.function), ("current_tracer", "function"))

    def off(self) -> None:
        write(("current_tracer", "nop"), ("set_ftrace_filter", ""))


class Livepatch:
    """tests/programs/livepatch, which patches cmdline_proc_show."""

    shows = "patched by a livepatch"

    def __init__(self, module: Path) -> None:
        self.module = module

    def on(self) -> None:
        load_module(self.module)
        self._settle()

    def off(self) -> None:
        (LIVEPATCH / "enabled").write_text("0\n")
        self._settle()
        unload_module("patched")

    def _settle(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if (LIVEPATCH / "transition").read_text().strip() == "0":
                    return
            except FileNotFoundError:
                return
            time.sleep(0.2)
        raise TimeoutError("the livepatch does not settle")


class _Bpf:
    """A BPF program that does nothing, and the link that attaches it."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.files: list[int] = []

    def on(self) -> None:
        try:
            self.files = self.attached()
        except OSError:
            self.off()
            raise

    def off(self) -> None:
        for file in self.files:
            os.close(file)
        self.files = []

    def attached(self) -> list[int]:
        raise NotImplementedError


class BpfKprobe(_Bpf):
    def attached(self) -> list[int]:
        program = _load(_KPROBE, 0, 0)
        kind = int(Path("/sys/bus/event_source/devices/kprobe/type").read_text())
        name = ctypes.create_string_buffer(self.function.encode())
        attr = ctypes.create_string_buffer(
            struct.pack("<IIQQQQQIIQQ", kind, 72, 0, 1, 0, 0, 0, 0, 0, ctypes.addressof(name), 0)
        )
        try:
            event = _call(_PERF_EVENT_OPEN, attr, -1, 0, -1, 0)
        except OSError:
            os.close(program)
            raise
        fcntl.ioctl(event, _SET_BPF, program)
        fcntl.ioctl(event, _ENABLE, 0)
        return [event, program]


class BpfFentry(_Bpf):
    def attached(self) -> list[int]:
        program = _load(_TRACING, _FENTRY, _number_of(self.function))
        attr = ctypes.create_string_buffer(struct.pack("<QI4x", 0, program))
        try:
            link = _call(_BPF, _RAW_TRACEPOINT_OPEN, attr, 16)
        except OSError:
            os.close(program)
            raise
        return [link, program]


def _load(kind: int, place: int, number: int) -> int:
    """Return a file descriptor of a program, by its type, attach type, and the function's BTF."""
    code, licence = ctypes.create_string_buffer(_CODE), ctypes.create_string_buffer(b"GPL")
    attr = struct.pack("<IIQQ", kind, 2, ctypes.addressof(code), ctypes.addressof(licence))
    attr += bytes(44)  # its log, version, flags, name, interface
    attr += struct.pack("<I", place) + bytes(36) + struct.pack("<I", number) + bytes(12)
    return _call(_BPF, _PROG_LOAD, ctypes.create_string_buffer(attr), len(attr))


def _call(number: int, *arguments: object) -> int:
    """Make the system call; raise OSError if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: int = libc.syscall(ctypes.c_long(number), *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _number_of(function: str) -> int:
    """Return a function's number in the kernel's BTF (Documentation/bpf/btf.rst)."""
    raw = Path("/sys/kernel/btf/vmlinux").read_bytes()
    head, types, size, strings = struct.unpack_from("<IIII", raw, 4)
    name = raw.index(b"\0" + function.encode() + b"\0", head + strings) + 1 - head - strings
    at, number = head + types, 1
    # Bytes after the 12 that all have: always, and for each member.
    extra = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0),
             15: (0, 12), 17: (4, 0), 19: (0, 12)}  # fmt: skip
    while at < head + types + size:
        called, info, _ = struct.unpack_from("<III", raw, at)
        kind, members = info >> 24 & 31, info & 0xFFFF
        if kind == _FUNC and called == name:
            return number
        always, each = extra.get(kind, (0, 0))
        at += 12 + always + each * members
        number += 1
    raise KeyError(function)
