"""Rank 4: the whole path of a trace; path.py shows all of it."""
