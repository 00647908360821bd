"""Which of QEMU's accelerators a guest runs under, as QEMU's arguments say.

Source: QEMU's manual, -accel: `-accel name[,prop=value[,...]]`; the first one that works is used.

Tested by tests/machines/vm/test_kvm.py.
"""

from __future__ import annotations

from collections.abc import Sequence

KVM, TCG = "kvm", "tcg"
_NAMING = ("-accel", "--accel")
_FOR_KVM = ("-enable-kvm", "--enable-kvm")


def says_accelerator(arguments: Sequence[str]) -> bool:
    """Return whether arguments of QEMU choose the accelerator (-accel, -enable-kvm)."""
    return any(argument in (*_NAMING, *_FOR_KVM) for argument in arguments)


def accelerator_of(arguments: Sequence[str]) -> str:
    """Return KVM if arguments of QEMU name it first, otherwise TCG."""
    for option, value in zip(arguments, (*arguments[1:], ""), strict=False):
        if option in _FOR_KVM:
            return KVM
        if option in _NAMING:
            return KVM if value.partition(",")[0] == KVM else TCG
    return TCG
