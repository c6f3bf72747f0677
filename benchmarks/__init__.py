"""Measurements of the library beside its peers and the limits of the machine (see README.md here)."""
