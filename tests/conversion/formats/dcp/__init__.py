"""Tests of the torch DCP adapter."""
