"""Tests of the framework adapters."""
