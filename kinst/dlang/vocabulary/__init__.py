"""The words of D as tables: built-ins, subroutines, options, constants, type names."""
