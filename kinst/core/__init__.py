"""Rank 0: plain frozen data, errors for users, and the protocols between the layers."""
