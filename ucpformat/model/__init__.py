"""The documents of a checkpoint as frozen dataclasses: from JSON, to JSON, no I/O (SPEC sections 7 to 16)."""
