"""The parts of the text format: rows, aggregations, drawings, structures, stacks."""
