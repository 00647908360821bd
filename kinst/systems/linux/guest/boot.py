"""How Linux is booted in QEMU, patterns for the lines on its console, and checks by page tables
that its boot is nearly complete.

Tested by tests/machines/vm/test_console.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from kinst.core.boot import (
    Boot,
    BootSpan,
    ConsoleSigns,
    KernelFile,
    Leap,
    TextCheck,
    never_final,
)
from kinst.core.errors import TargetError
from kinst.core.page_tables import LEAF_SIZE, Paging, Read
from kinst.systems.linux.guest.initramfs import Initramfs

_MOVED_WITHIN = 1 << 30
_LEAP_WITHIN = 256  # bytes of the function that jumps to the kernel's own address space
_BOOT_CODE_WITHIN = 64 << 20  # init code is no further from the start of the text

SIGNS = ConsoleSigns(
    panic=re.compile(r"Kernel panic - not syncing: .*"),
    trouble=re.compile(
        # CPUs and tasks that make no progress (kernel/watchdog.c, rcu/tree_stall.h, hung_task.c).
        r"(?P<hang>(?:watchdog: )?BUG: soft lockup.*|.*hard LOCKUP.*|BUG: workqueue lockup.*|"
        r".*rcu.* (?:detected|self-detected) (?:expedited )?stalls?\b.*|.*hung_task: .*|"
        r"INFO: task .* blocked for more than .*)|"
        # SLUB's own checks (slub_debug=, mm/slub.c): "BUG kmalloc-64 (Not tainted): ...".
        r"(?P<oops>BUG: .*|BUG [\w:-]+ \(.*\): .*|Oops: .*|general protection fault.*|PANIC: .*|"
        # die() of an architecture, for any reason: "int3: 0000 [#1] SMP".
        r"\w[\w: -]*: [0-9a-f]{4,16} \[#\d+\].*|\w[\w -]* \[#\d+\])|"
        # WARN(), which prints the place first since Linux 6.19; and lockdep and its like.
        r"(?P<warn>WARNING: (?:CPU: |\S+:\d+ at |possible |suspicious |inconsistent |bad |held |"
        r"lock held |Nested ).*)"
    ),
    first_program=re.compile(r"Run \S+ as init process"),
    # Linux 7.3; Linux 6.1 executes the breakpoint again for ever.
    lost_breakpoint="Oops: int3: 0000",
)


def boot(
    image: str,
    console: str,
    ports: tuple[str, str],
    limit: str,
    parameters: str = "",
    modules: str = "",
    text_is_final: TextCheck = never_final,
    leap: tuple[str, bytes, str, str] | None = None,
    touched: Sequence[tuple[int, int]] = (),
) -> Boot:
    """Return how QEMU boots Linux on one ISA.

    Args:
        image: path of the boot image in the kernel's build folder.
        console: the kernel's name of the serial port for its console.
        ports: the kernel's names of the serial ports for the command's output and for control.
        limit: the kernel parameter that limits how much memory the kernel uses.
        parameters: kernel parameters that only guests with kinst's own initrd get.
        modules: kernel parameters that only guests that load modules get.
        text_is_final: tells by page tables whether the kernel is about to start init.
        leap: the jump of boot code into the kernel's own address space: (function that contains the
            jump, bytes of the jump, register with the target, symbol of the target). From the
            register kinst computes the slide. None if kinst finds the slide in another way.
        touched: memory ranges (virtual address, bytes) that boot code first accesses when the page
            tables map the kernel's image. At this access kinst finds the slide in the page tables.
            () if no such ranges are known.
    """
    # Without the self-tests of ciphers, the kernel boots in four fifths of the time under TCG.  A
    # guest with the user's initrd boots with its usual parameters.  Init gets parameters that the
    # kernel does not know as variables.
    tuned = f"cryptomgr.notests random.trust_cpu=on {parameters}".strip()
    return Boot(
        image,
        # panic=-1 reboots at once, and with -no-reboot QEMU then exits.
        f"console={console} panic=-1 {limit}",
        f"{tuned} kinst_output={ports[0]} kinst_control={ports[1]}",
        modules,
        SIGNS,
        Initramfs(),
        text_is_final,
        partial(span_of, leap=leap, touched=touched),
    )


def span_of(
    file: KernelFile,
    leap: tuple[str, bytes, str, str] | None = None,
    touched: Sequence[tuple[int, int]] = (),
) -> BootSpan | None:
    """Return the part of Linux's boot that can be traced: from start_kernel() to the start of init.

    Return None if the file lacks a symbol or code that is needed.

    Sources: init/main.c. On riscv64, KASLR moves the image by a multiple of 2 MB within a gigabyte
    (arch/riscv/mm/init.c, setup_vm()).

    Args:
        file: the kernel's vmlinux.
        leap: the jump of boot code into the kernel's own address space: (function that contains the
            jump, bytes of the jump, register with the target, symbol of the target); None if kinst
            finds the slide in another way.
        touched: memory ranges (virtual address, bytes) that boot code first accesses when the page
            tables map the kernel's image; () if none are known.
    """
    text, end, first = (file.address(name) for name in ("_text", "_end", "start_kernel"))
    if text is None or end is None or first is None:
        return None
    slides = range(0, _MOVED_WITHIN - (end - (text & -_MOVED_WITHIN)) + 1, LEAF_SIZE)
    jump = None
    if leap is not None:
        name, code, register, target = leap
        start, to = file.address(name), file.address(target)
        body = file.read(start, _LEAP_WITHIN) if start is not None else b""
        if code not in body or to is None:
            return None
        jump = Leap(body[: body.index(code) + len(code)], len(code), register, to)
    return BootSpan(text, first, file.address("run_init_process") or 0, slides, jump, touched)


def text_is_protected(
    paging: Paging, read: Read, registers: Mapping[str, int], image: tuple[int, int]
) -> bool:
    """Return whether page tables show that Linux has write-protected its text. Directly afterwards,
    Linux starts init (init/main.c, mark_readonly).

    Args:
        read: reads the guest's memory, in which the page tables are.
        registers: registers of the CPU whose page tables are looked at.
        image: range of virtual addresses in which the kernel's image may be.
    """
    if not paging.translates(registers):
        return False
    root = paging.root_of(registers)
    try:
        leaf = paging.walk(read, root, paging.find_text(read, root, image))
    except TargetError:
        return False
    return leaf is not None and not leaf.writable


def boot_code_is_freed(
    paging: Paging, read: Read, registers: Mapping[str, int], image: tuple[int, int]
) -> bool:
    """Return whether page tables show that Linux has freed its init code, which it does just before
    it starts init (init/main.c, free_initmem).

    Args:
        read: reads the guest's memory, in which the page tables are.
        registers: registers of the CPU whose page tables are looked at.
        image: range of virtual addresses in which the kernel's image may be.
    """
    if not paging.translates(registers):
        return False
    root = paging.root_of(registers)
    try:
        start = paging.find_text(read, root, image)
    except TargetError:
        return False
    starts = [low for low, _ in paging.executable_ranges(read, root, image)]
    return not any(start < low < start + _BOOT_CODE_WITHIN for low in starts)
