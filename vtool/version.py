"""The version of vtool."""

__version__ = "0.1.0"
