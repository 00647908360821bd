"""Types of D programs: their names, conversions and operators."""
