"""Read what clauses wrote, and make events of it: rings, records, aggregations."""
