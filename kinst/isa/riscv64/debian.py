"""Debian's kernel for riscv64 guests: trixie's, as bookworm has none.

The debug package is 1 GB, most of it for modules.
"""

from __future__ import annotations

from kinst.core.kernel_package import KernelPackage

KERNEL = KernelPackage(
    "trixie", "riscv64", r"linux-image-6\.12\.(\d+)\+deb13(?:\+(\d+))?-riscv64", 2_200_000_000
)
