"""Rank 3: one folder for each operating system."""
