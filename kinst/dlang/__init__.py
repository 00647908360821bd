"""The D language: its vocabulary, its syntax, its types, the checker, the typed tree."""
