"""Benchmarks of kinst and of its peers."""
