"""arm64 (AArch64): see the modules of this package."""
