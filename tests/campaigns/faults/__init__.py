"""Faults of system calls, by a shim that is loaded before the C library."""
