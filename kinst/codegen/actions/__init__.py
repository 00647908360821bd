"""Code of a clause's actions: writing records, updating aggregations."""
