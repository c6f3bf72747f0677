"""The conformance suite of the universal checkpoint format, independent of every implementation."""

__version__ = "0.1.0"
