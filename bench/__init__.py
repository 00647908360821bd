"""Benchmarks of kinst and of tools that do the same work."""
