"""No order of requests, and no answer that is lost, has a log lose what was durable, or two starts begin one epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from unittest.mock import patch

import pytest

from tests.simulation import logs
from tests.simulation.logs import Logs, simulated
from tests.simulation.schedule import Bounds, ViolationError, drawn, explore
from ucpformat.update_log.place import LogKeys, LogPlace, epoch_key, sorted_keys
from ucpformat.update_log.reading import StoredLog


@pytest.mark.parametrize(
    ("jobs", "bounds"), [(1, Bounds(0, 0)), (2, Bounds(2, 0)), (2, Bounds(1, 1)), (3, Bounds(2, 1))], ids=str
)
def test_no_schedule_loses_a_durable_step(jobs: int, bounds: Bounds) -> None:
    """UCP-W-036, UCP-W-038, UCP-W-040, UCP-R-040."""
    with simulated():
        explore(partial(Logs, jobs=jobs), bounds, 400).require_whole()
        drawn(partial(Logs, jobs=3), Bounds(6, 2), 100, 5).require_whole()


@contextmanager
def starting_alike() -> Iterator[None]:
    """Every start has the same mark: of two that begin an epoch each takes the object for its own."""
    with patch.object(logs, "drawn_id", lambda: "0" * 32):
        yield


@contextmanager
def believing_the_listing() -> Iterator[None]:
    """An epoch that a listing does not show is read with the batches of that listing."""

    def keys(self: StoredLog) -> LogKeys:
        found = sorted_keys(self.store.keys())
        while self.store.has(epoch_key(len(found.epochs))):
            found.epochs.append(len(found.epochs))
        return found

    with patch.object(StoredLog, "_keys", keys):
        yield


@contextmanager
def writing_over() -> Iterator[None]:
    """Objects are put whatever lies there."""
    with patch.object(LogPlace, "create", lambda self, key, buffers: self.store.replace(key, buffers)):
        yield


@pytest.mark.parametrize("change", [starting_alike, believing_the_listing, writing_over])
def test_a_protocol_that_does_not_hold_is_found_out(
    change: Callable[[], AbstractContextManager[None]],
) -> None:
    with simulated(), change():
        found = explore(partial(Logs, jobs=3), Bounds(2, 0))
    assert found.broken is not None
    with pytest.raises(ViolationError):
        found.require_whole()
