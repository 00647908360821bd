"""Code generation for expressions: the values of typed trees."""
