"""The D language: vocabulary, syntax, types, checker and typed tree."""
