"""Lowering of actions: records, aggregations."""
