"""The scan of a whole .debug_info, compiled by numba; no other package uses numba."""
