"""Requests to kinst's module made by hand, without the rest of kinst; run as root in a guest by
test_live_module.py.

The code in them is written here byte by byte.

live_module_in_guest.py MODULE FUNCTION PROGRAM RUN TRAP: RUN is "offset:size,size,...", of short
instructions that mean the same anywhere; TRAP is "offset:size" of one more; and at 0 there is an
instruction of five bytes.  Prints the results in JSON.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from kinst.core.machine import LivePatch
from kinst.errors import KinstError
from kinst.machines.live.device import Device
from kinst.wire.kernel_module import load_module, unload_module

PAGE, SCRATCH = 4096, 1 << 20
CODE, ACTIVE, GATHERED = PAGE, 0, 64 << 10  # offsets in scratch; the code has a page
HANDLER, FIRST, ROOM = 0, 256, 128  # offsets in the code; bytes of each site's
INC_GS = bytes.fromhex("65 48 ff 04 25")  # inc qword gs:[displacement of 32 bits]
INT3, JUMP = b"\xcc", 5
IP = 0x80  # of struct pt_regs
PATIENCE = 60  # seconds without a request after which the module undoes everything
PERIOD, BUSY = 3_000_000, 14_000_000  # ns of a timer; cycles that its code takes
FUNCTION, PROGRAM = sys.argv[2:4]


def jump(at: int, to: int) -> bytes:
    return b"\xe9" + struct.pack("<i", to - (at + JUMP))


def handler(at: int, site: int, to: int) -> bytes:
    """Return code of int handler(struct pt_regs *): whether the breakpoint was the site's, which
    then continues."""
    return (
        bytes.fromhex("48 8b 87") + struct.pack("<I", IP)  # mov rax, [rdi + IP]
        + bytes.fromhex("48 b9") + struct.pack("<Q", site + 1)  # movabs rcx, after the breakpoint
        + bytes.fromhex("48 39 c8 75 17")  # cmp rax, rcx; jne to the end
        + bytes.fromhex("48 b8") + struct.pack("<Q", to)  # movabs rax, to
        + bytes.fromhex("48 89 87") + struct.pack("<I", IP)  # mov [rdi + IP], rax
        + bytes.fromhex("b8 01 00 00 00 c3")  # mov eax, 1; ret
        + bytes.fromhex("31 c0 c3")  # xor eax, eax; ret
    )  # fmt: skip


def busy_sample(displacement: int) -> bytes:
    """Return code of void sample(struct pt_regs *): count its calls, and return after BUSY
    cycles."""
    now = bytes.fromhex("0f 31 48 c1 e2 20 48 09 d0")  # rdtsc; shl rdx, 32; or rax, rdx
    return (
        INC_GS + struct.pack("<i", displacement)
        + now + bytes.fromhex("48 8d 88") + struct.pack("<I", BUSY)  # lea rcx, [rax + BUSY]
        + now + bytes.fromhex("48 39 c8 72 f2 c3")  # cmp rax, rcx; jb to the second rdtsc; ret
    )  # fmt: skip


def address_of(name: str) -> int:
    lines = (line.split() for line in Path("/proc/kallsyms").read_text().splitlines())
    return next(int(words[0], 16) for words in lines if words[2] == name)


def refused(device: Device, sites: list[LivePatch], hook: int) -> str:
    try:
        device.plant(sites, [], hook, 0, PATIENCE)
    except KinstError as error:
        return str(error)
    device.unplant()
    return ""


def main() -> None:
    load_module(Path(sys.argv[1]))
    device, start = Device(), address_of(FUNCTION)
    base, view = device.map_scratch(SCRATCH)
    displacement, room = device.allocate_counters(64)
    offset, sizes = sys.argv[4].split(":")
    run = int(offset), sum(map(int, sizes.split(",")))
    trap = tuple(map(int, sys.argv[5].split(":")))
    before = device.read(start, PAGE)
    sites = []
    for number, (at, size) in enumerate(((0, JUMP), run, trap)):
        place = CODE + FIRST + ROOM * number
        code = INC_GS + struct.pack("<i", displacement + 8 * number) + before[at : at + size]
        code += jump(base + place + len(code), start + at + size)
        view[place : place + len(code)] = code
        new = jump(start + at, base + place) if number < 2 else INT3
        sites.append(LivePatch(start + at, before[at : at + len(new)], new, several=number == 1))
    hook = base + CODE + HANDLER
    code = handler(hook, start + trap[0], base + CODE + FIRST + 2 * ROOM)
    view[CODE : CODE + len(code)] = code
    sample = CODE + FIRST + ROOM * 3
    code = busy_sample(displacement + 8 * 3)
    view[sample : sample + len(code)] = code
    device.seal(CODE, PAGE)
    jumps, several, broken = sites
    first = int(sizes.split(",")[0])
    told = {
        "not several": refused(device, [replace(several, several=False)], hook),
        "only one": refused(device, [replace(jumps, several=True)], hook),
        "changed": refused(device, [jumps, replace(several, old=b"\x90" * JUMP)], hook),
        "no start": refused(
            device,
            [
                LivePatch(
                    start + run[0] + first - 1,
                    before[run[0] + first - 1 :][:JUMP],
                    jump(start + run[0] + first - 1, hook),
                    several=True,
                )
            ],
            hook,
        ),
        "overlapping": refused(
            device,
            [several, LivePatch(start + run[0] + first, before[run[0] + first :][:1], INT3)],
            hook,
        ),
        "no handler": refused(device, [broken], 0),
    }
    untouched = device.read(start, PAGE) == before
    breakpoints = address_of("exc_int3")
    entry = device.read(breakpoints, 64)
    device.plant(sites, [], hook, base + ACTIVE, PATIENCE)
    there = device.read(start, PAGE)
    planted = [there[at : at + len(site.new)] == site.new
               for site, at in zip(sites, (0, run[0], trap[0]), strict=True)]  # fmt: skip
    led = device.read(breakpoints, 64) != entry
    subprocess.run([PROGRAM, "2000"], check=True, capture_output=True)
    left = device.unplant()
    began = time.monotonic()
    device.start_timer(PERIOD, base + sample, base + ACTIVE, PATIENCE)
    on = time.monotonic()
    time.sleep(1.5)
    over = time.monotonic()
    device.unplant()
    least, most = over - on, time.monotonic() - began
    missed = device.missed(0)
    device.gather(GATHERED, 64)
    cpus = device.info().cpus
    words = struct.unpack_from(f"<{8 * cpus}Q", view, GATHERED)
    *counts, samples = [sum(words[number::8]) for number in range(4)]
    same = device.read(start, PAGE) == before
    back = device.read(breakpoints, 64) == entry
    del view
    device.close()
    unload_module("kinst")
    said = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    print(json.dumps({"told": told, "untouched": untouched, "planted": planted, "led": led,
                      "left": left, "counts": counts, "room": room, "same": same, "back": back,
                      "log": said,
                      "timer": [samples, missed, least, most, cpus, PERIOD]}))  # fmt: skip


main()
