"""The version of kinst."""

__version__ = "0.1.0"
