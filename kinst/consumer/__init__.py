"""The consumer: reads the rings, records and aggregations that clauses wrote in scratch, and makes
events of them."""
