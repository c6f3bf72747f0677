"""A run directory: what was committed, what is kept, what goes, and resuming with one call."""

from ucpformat.manager.checkpoint_manager import CheckpointManager
from ucpformat.manager.collection import Collected, collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import RunDirectory, open_run

__all__ = ["CheckpointManager", "Collected", "Retention", "RunDirectory", "collect", "open_run"]
