"""Tests that need a framework which the common environment lacks: each room runs where its framework is installed."""
