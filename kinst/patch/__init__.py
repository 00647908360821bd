"""Plan what is written into the kernel: pure functions from sites and code to patches and
trampolines.  Nothing here touches a target."""
