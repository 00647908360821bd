"""The scan of a whole .debug_info, compiled by numba; the only user of numba."""
