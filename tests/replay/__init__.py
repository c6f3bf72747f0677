"""Logging the updates of a training job, and recovering from them."""
