"""Damage to stored bytes, and what validation and every way of reading make of it."""
