"""Parts shared by machines with a GDB stub."""
