"""Threads that sleep inside functions while these are planted and unplanted, over and over.

Processes block in pipes, sockets, timers, and for signals and children, all the time and on all
CPUs; each checks its results (tests/programs/sleepers.c).  Meanwhile all instructions of the
functions in which they sleep are planted, with chains, runs, gates and blocks, and unplanted.

    KINST_ROUNDS=500 python -m pytest -s tests/vm/counts/test_sleepers.py    more rounds than usual
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import kinst
from bench.guest import compile_programs
from kinst.events import Output

pytestmark = [pytest.mark.vm, pytest.mark.slow]

ROUNDS = int(os.environ.get("KINST_ROUNDS", "12"))
# Functions in which they sleep, that wake them, and in which they fault.
SLEPT_IN = (
    "pipe_read", "pipe_write", "vfs_read", "vfs_write", "ksys_read", "ksys_write", "do_poll*",
    "do_sys_poll", "do_select", "core_sys_select", "do_epoll_wait", "do_nanosleep",
    "hrtimer_nanosleep", "schedule_hrtimeout*", "schedule_timeout", "do_wait", "kernel_wait4",
    "unix_stream_read_generic", "unix_stream_sendmsg", "sock_read_iter", "sock_write_iter",
    "anon_pipe_buf_release", "kernel_clone", "get_signal", "do_send_sig_info", "autoremove_wake*",
    "pollwake", "ep_poll_callback", "read_zero", "read_iter_zero", "do_exit", "wait_consider_task",
)  # fmt: skip
RULES = ("auto", "auto", "no-block", "no-run", "no-chain")
CASES = [
    pytest.param("amd64", 1, "", id="amd64-1"),
    pytest.param("amd64", 2, "", id="amd64-2"),
    pytest.param("amd64", 4, "", id="amd64-4"),
    pytest.param("amd64", 2, "preempt=full", id="amd64-preempt"),
    pytest.param("amd64", 2, "nokaslr", id="amd64-nokaslr"),
    pytest.param("arm64", 2, "", id="arm64-2"),
    pytest.param("riscv64", 2, "", id="riscv64-2"),
]


def text_of(machine: kinst.Machine) -> bytes:
    assert machine._started is not None
    traced = machine._started.machine
    low, high = traced.text
    traced.target.stop()
    try:
        return traced.target.read(low, high - low)
    finally:
        traced.target.resume()


# Code of a static key, which the kernel may change at any time: a no-operation, or a jump, which
# has these bits in its first or last byte.  Linux, include/linux/jump_label.h.
STATIC_KEYS = {
    "amd64": ((b"\x66\x90", 0, 0xFF, 0xEB), (b"\x0f\x1f\x44\x00\x00", 0, 0xFF, 0xE9)),
    "arm64": ((b"\x1f\x20\x03\xd5", 3, 0xFC, 0x14),),
    "riscv64": ((b"\x13\x00\x00\x00", 0, 0xFF, 0x6F),),
}


def changed(isa: str, old: bytes, new: bytes) -> list[str]:
    """Return the places at which two copies of the kernel's text differ, without switched static
    keys."""
    differing = np.flatnonzero(np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8))
    found, end = list[str](), 0
    for at in differing.tolist():
        if at < end:
            continue
        start = at & -4 if isa == "arm64" else at
        for nop, place, mask, bits in STATIC_KEYS[isa]:
            both = [text[start : start + len(nop)] for text in (old, new)]
            if nop in both and any(one != nop and one[place] & mask == bits for one in both):
                end = start + len(nop)
                break
        else:
            found.append(f"{at:#x}: {old[at : at + 8].hex()}, now {new[at : at + 8].hex()}")
    return found


def test_what_is_a_change() -> None:
    plain, nops = b"\x55\x48\x89\xe5", b"\x66\x90\x0f\x1f\x44\x00\x00"
    jumps = b"\xeb\x10\xe9\x00\x01\x00\x00"
    assert not changed("amd64", plain + nops + plain, plain + jumps + plain)
    assert not changed("amd64", jumps, nops)
    assert len(changed("amd64", plain + nops, b"\xcc" + plain[1:] + jumps)) == 1
    assert changed("amd64", nops, b"\xcc" + nops[1:]) and changed("amd64", jumps, jumps[::-1])
    assert not changed("arm64", b"\x1f\x20\x03\xd5", b"\x1f\x00\x00\x14")
    assert changed("riscv64", b"\x13\x00\x00\x00", b"\x02\x90\x00\x00")


def sites_of(machine: kinst.Machine) -> str:
    """Return all instructions of the functions that this kernel has."""
    found = []
    for name in SLEPT_IN:
        with suppress(kinst.KinstError):
            found += [f"kinst::{p.function}:" for p in machine.probes(f"kinst::{name}:0")]
    return ", ".join(dict.fromkeys(found))


def shell(machine: kinst.Machine, command: str) -> str:
    return machine.execute(command, 120.0).output.decode().replace("\r", "")


@pytest.mark.parametrize(("isa", "cpus", "append"), CASES)
def test_nobody_is_hurt(isa: str, cpus: int, append: str, tmp_path: Path) -> None:
    said: list[str] = []
    copies = compile_programs(["sleepers"], tmp_path, isa)
    with kinst.boot(
        isa, append=append, copies=copies, cpus=cpus, on_message=said.append
    ) as machine:
        program = f"{sites_of(machine)} {{ @ = count(); }}"
        compiled = [machine.compile(program, {"plant": rule}) for rule in RULES]
        shell(machine, "sleepers 100000 >/tmp/told 2>&1 & sleep 1")
        told = shell(machine, "cat /tmp/told")
        sleeper = re.search(r"sleeps (\d+)", told)
        assert sleeper is not None
        stack = f"cat /proc/{sleeper[1]}/stack"
        before, text, hits = shell(machine, stack), text_of(machine), 0
        assert "read" in before
        began = time.monotonic()
        for k in range(ROUNDS):
            output = b""
            with machine.trace(compiled[k % len(compiled)], f"sleep 0.05; {stack}") as trace:
                for event in trace.events():
                    match event:
                        case Output(data):
                            output += data
                (table,) = trace.aggregations().values()
                hits += sum(n for n in table.values() if isinstance(n, int))
            assert output.decode().replace("\r", "") == before, f"round {k}"
            now = text_of(machine)
            assert not changed(isa, text, now), f"round {k}"
            text = now
        assert shell(machine, "cat /tmp/told") == told
        assert not shell(machine, "dmesg | grep -E 'BUG|WARNING|Oops|stall'; true")
        assert int(shell(machine, "ps | grep -c '[s]leepers'")) >= 12
        alone = [re.search(r"(\d+) of (\d+) runs", line) for line in said]
        print(
            f"\n{isa}, {cpus} CPUs {append}: {ROUNDS} rounds in {time.monotonic() - began:.0f} s,"
            f" {hits} hits, runs with somebody inside: {[m[0] for m in alone if m][:3]}"
        )
