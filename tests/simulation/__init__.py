"""Deterministic simulation of the commit: the real stores over media that do every operation one after another."""
