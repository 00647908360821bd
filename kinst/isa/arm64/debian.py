"""Debian's kernel package for arm64 guests: the cloud kernel, whose drivers are those of virtual
machines."""

from __future__ import annotations

from kinst.core.kernel_package import KernelPackage

KERNEL = KernelPackage("arm64", (6, 1), "cloud", 1_300_000_000)
