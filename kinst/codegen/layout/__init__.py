"""Where everything that clauses write lies: records, tables, variables."""
