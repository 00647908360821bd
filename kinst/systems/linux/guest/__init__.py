"""Linux as a guest that kinst boots: parameters for QEMU, patterns for its console, and its first
file system."""
