"""Debian's kernel package for riscv64 guests: the package of Debian 13, since Debian 12 has none.

The debug package is 1 GB, most of it for modules.
"""

from __future__ import annotations

from kinst.core.kernel_package import KernelPackage

KERNEL = KernelPackage("riscv64", (6, 12), "", 2_200_000_000)
