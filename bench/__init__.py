"""What kinst costs, beside what its peers cost."""
