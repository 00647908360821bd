"""Benchmarks of kinst, beside its peers."""
