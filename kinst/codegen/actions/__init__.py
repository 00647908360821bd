"""Code of actions: records and aggregations."""
