"""Parts that are shared by the kinds of machines that kinst reaches through a GDB stub."""
