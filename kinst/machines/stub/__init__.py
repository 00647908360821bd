"""What all machines behind a GDB stub share."""
