"""Texts and pictures of what checkpoints hold, made of names and figures alone."""
