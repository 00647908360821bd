"""Rank 3: fetch kernels, debug files, modules and busybox into a cache, and find those that are
installed."""
