"""Planning of what kinst writes into the kernel: pure functions that make patches and trampolines
from sites and their code. Nothing in this package touches a target."""
