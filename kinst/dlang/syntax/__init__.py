"""D as it is written: tokens, the syntax tree, and the parsers that make it."""
