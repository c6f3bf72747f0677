"""Trainers of others on this format: one module for each, which imports its framework; none is imported here."""
