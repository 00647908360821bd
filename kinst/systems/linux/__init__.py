"""What must be known of Linux to trace it."""
