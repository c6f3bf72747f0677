"""Checkpoints under fsspec URLs: requests, packs as uploads, and stores made of them (SPEC section 8)."""
