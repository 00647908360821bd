"""Types of D programs: names, conversions, operators."""
