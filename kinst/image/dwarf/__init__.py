"""DWARF: the index, entries, types, locations, call frames and lines of one file."""
