"""The words of D as tables: built-ins, options, formats, constants."""
