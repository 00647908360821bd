"""A kernel that kinst boots in QEMU."""
