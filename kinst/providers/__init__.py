"""Rank 2: one file for each provider: which probes a description means."""
