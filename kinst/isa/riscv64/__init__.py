"""riscv64 (RV64GC): see the modules of this package."""
