"""Boxes of slots to chunks, chunks to objects, and what of them is recorded (SPEC section 16)."""
