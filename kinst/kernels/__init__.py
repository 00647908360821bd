"""Rank 3: fetching kernels, debug files, modules and busybox, into a cache."""
