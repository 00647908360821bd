"""Code of expressions: the values of typed trees."""
