"""Logging the updates of a training job in torch, and replaying them (SPEC-UPDATE-LOGS)."""
