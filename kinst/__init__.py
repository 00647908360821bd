"""kinst: trace any instruction and any inline function of a running kernel with D."""

__version__ = "0.1.0"
