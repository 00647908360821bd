"""Rank 5: pictures and texts for people, made from results: annotated functions, flame graphs,
differences.

Values in, text out: nothing here traces, prints or opens a file.
"""
