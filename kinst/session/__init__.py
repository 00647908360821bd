"""Rank 4: the stages of a trace, from a request to its events."""
