"""The guest that kinst boots: how Linux is started in QEMU, what it says, the programs in it."""
