"""Rank 0: plain frozen data, errors for people, and the protocols between the layers."""
