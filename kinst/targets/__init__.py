"""Rank 2: one file for each target and each personality."""
