"""Stages of a trace, from the user's request to the events that the trace yields (rank 4 of the
import order).
"""
