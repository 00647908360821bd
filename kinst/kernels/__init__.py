"""Kernels to boot or to trace: fetching kernels, debug files, modules and busybox into a cache, and
finding those that are installed. Rank 3 of the import order (docs/architecture.md)."""
