"""Hostile input (SPEC section 19): fuzzing of parsers, importers and checkpoints, and malicious files."""
