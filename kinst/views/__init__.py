"""Rank 5: what people look at, made from results: annotated functions, flame graphs, differences.

Values in, text out: nothing here traces, prints or opens a file."""
