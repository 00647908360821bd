"""The syscall provider: entry and return of each system call (Dynamic Tracing Guide, ch. 21).

syscall::<name>:entry is at the start of the kernel's function for the system call. arg0 to arg5 are
the arguments that the user program passes.

syscall::<name>:return fires where the kernel has the system call's result. arg0 and arg1 both are
the result. If the system call fails, they are the negative error number, as with DTrace for Linux,
and errno is the error number.

System calls have the names that user programs use, such as read. The module is vmlinux; it is
compat for the kernel's functions that only 32-bit programs call.

Tested by tests/providers/test_syscall.py and tests/vm/language/test_system_calls.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from kinst.core.dtypes import INT64, DType
from kinst.core.errors import AbsentError
from kinst.core.kernel import Found, Kernel, Provider
from kinst.core.probe import ProbeInterface, ProbeName, ProbePattern, Site
from kinst.core.stability import stability_of
from kinst.core.system import SystemCall
from kinst.core.types import TypeSource
from kinst.providers.fbt import NAMES, entry_probe_site

# Prefixes of the functions whose prototypes are those of system calls (SYSCALL_DEFINE of the
# kernel's include/linux/syscalls.h).
_TYPED = ("__do_sys_", "__do_compat_sys_")
_GLOB = re.compile(r"[*?\[]")


class SyscallProvider(Provider):
    """The provider of entry and return probes of system calls, by the names that programs use."""

    name = "syscall"
    stability = stability_of(
        "Evolving/Evolving/Common", "Private/Private/Unknown", "Private/Private/ISA",
        "Evolving/Evolving/Common", "Private/Private/ISA",
    )  # fmt: skip
    interface = ProbeInterface(returns=("return",), system_calls=True, has_locals=False)
    usage = "syscall::NAME:entry and syscall::NAME:return name system calls, syscall:::entry all"

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Iterator[Found]:
        if pattern.provider in ("", "*") or kernel is None:
            return  # fbt has these functions
        if not fnmatchcase(self.name, pattern.provider):
            return
        places: dict[int, Site] = {}
        calls = kernel.system_calls()
        _check_name(pattern, calls)
        for call in calls:
            for name in NAMES:
                probe = ProbeName(self.name, call.module, call.name, name)
                if not pattern.matches(probe):
                    continue
                if name == "entry":
                    yield from _entry(probe, call, kernel)
                else:
                    for one in _returns(probe, call, kernel, places):
                        named = call.never_returns and pattern.function == call.name
                        never = f"{call.name}() does not return to the program" if named else ""
                        yield replace(one, never=never) if never else one

    def argument_types(self, pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
        """Return the types of args[] at the probe that a description names; None if the description
        does not name one system call and one probe of it.

        At entry, these are the types of the system call's parameters; six 64-bit integers if the
        kernel's types do not have the system call's function. At return, they are two 64-bit
        integers, both for the result.
        """
        plain = pattern.function and not any(c in pattern.function for c in "*?[")
        if pattern.provider != self.name or not plain or pattern.name not in NAMES:
            return None
        if pattern.name == "return":
            return INT64, INT64
        signatures = (types.function(prefix + pattern.function) for prefix in _TYPED)
        signature = next((one for one in signatures if one is not None), None)
        return [INT64] * 6 if signature is None else signature.parameters


def _check_name(pattern: ProbePattern, calls: Sequence[SystemCall]) -> None:
    """Raise AbsentError if the kernel's system calls are not known, or if a description names one
    system call, without a glob, that the kernel does not have.

    Args:
        calls: the kernel's system calls; empty if they are not known.
    """
    name = pattern.function
    if not calls:
        raise AbsentError("this kernel's system calls are not known")
    if name and not _GLOB.search(name) and all(call.name != name for call in calls):
        near = get_close_matches(name, {call.name for call in calls}, 1)
        hint = f"did you mean {near[0]}?" if near else "kinst -l -P syscall lists them"
        raise AbsentError(f'no system call named "{name}"', hint)


def _entry(probe: ProbeName, call: SystemCall, kernel: Kernel) -> Iterator[Found]:
    one = entry_probe_site(call.function, kernel)
    if one is not None:
        site = Site(call.function, one.address - call.function.address, one.code)
        yield Found(probe, site, arguments=call.arguments)


def _returns(
    probe: ProbeName, call: SystemCall, kernel: Kernel, sites: dict[int, Site]
) -> Iterator[Found]:
    """Yield the return probe of a system call, at each of its sites.

    Args:
        sites: a cache of sites by address, to which _returns() adds. Many system calls share a
            site.
    """
    for result in call.results:
        if result.address not in sites:
            function = kernel.at(result.address)
            if function is None:
                continue
            one = next(i for i in kernel.instructions(function) if i.address == result.address)
            offset = one.address - function.address
            sites[one.address] = Site(function, offset, one.code)
        site = sites[result.address]
        yield Found(probe, site, arguments=(result.value,) * 2, selection=result.selection)


PROVIDER = SyscallProvider()
