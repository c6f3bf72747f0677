"""Bytes: stores, checksums, compression, chunks, and the Zarr view (SPEC sections 8 and 16)."""
