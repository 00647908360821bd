"""Layout of everything that clauses write: records, aggregations, variables."""
