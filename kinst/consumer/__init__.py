"""Rank 2: buffers, records, aggregations, and the text that dtrace(1) would print."""
