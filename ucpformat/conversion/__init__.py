"""Formats of checkpoints: their interface, those that come along, and conversion between them (docs/plugins.md)."""
