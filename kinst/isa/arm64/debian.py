"""Debian's kernel for arm64 guests: the cloud one, whose drivers are those of virtual machines."""

from __future__ import annotations

from kinst.core.kernel_package import KernelPackage

KERNEL = KernelPackage("bookworm", "arm64", r"linux-image-6\.1\.0-(\d+)-cloud-arm64", 1_300_000_000)
