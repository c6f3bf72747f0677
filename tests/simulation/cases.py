"""Every world that is simulated: media, storages, and casts of actors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, get_args

from tests.builders import STORAGES
from tests.simulation import directories, logs, stores
from tests.simulation.directories import Directories
from tests.simulation.file_system import Locks
from tests.simulation.logs import Logs
from tests.simulation.schedule import Bounds, Explored, Schedule, World, drawn, explore
from tests.simulation.stores import Stores

__all__ = ["CASTS", "Case", "cases"]

LOCKS: tuple[Locks, ...] = get_args(Locks)
CASTS = (
    ("writer", "writer"),
    ("writer", "collector"),
    ("writer", "writer", "collector"),
    ("writer", "manager", "writer"),
    ("sharer", "remover"),
    ("sharer", "sharer", "remover"),
    ("sharer", "remover", "collector"),
    ("sharer", "manager", "remover"),
    ("sharer", "replacer"),
    ("sharer", "sharer", "replacer"),
    ("copier", "copier", "collector"),
    ("copier", "copier", "replacer"),
)


@dataclass(frozen=True)
class Case:
    """A world, by name."""

    name: str
    make: Callable[[Schedule], World]
    simulated: Callable[[], AbstractContextManager[None]]

    def explore(self, bounds: Bounds, most: int | None = None) -> Explored:
        """As `schedule.explore`."""
        with self.simulated():
            return explore(self.make, bounds, most)

    def drawn(self, bounds: Bounds, count: int, seed: int) -> Explored:
        """As `schedule.drawn`."""
        with self.simulated():
            return drawn(self.make, bounds, count, seed)


def cases(**also: Any) -> Iterator[Case]:
    """All of them; ``also`` is for every world."""
    for storage, debris, cast in product(STORAGES, (False, True), CASTS):
        what = f"{storage}, {', '.join(cast)}{', debris' if debris else ''}"
        common = {"storage": storage, "debris": debris, "cast": cast, **also}
        # In storage plain links are the same, by other keys; and nobody replaces what was linked.
        is_of_links = not {"replacer", "copier"} & {*cast} and not ("sharer" in cast and storage == "plain")
        for locks, links in product(LOCKS, (True, False)) if is_of_links else ():
            yield Case(
                f"directory, locks: {locks}, {'links' if links else 'renames'}, {what}",
                partial(Directories, locks=locks, links=links, **common),
                directories.simulated,
            )
        yield Case(
            f"object store, {what}",
            partial(Stores, **common),
            stores.simulated,
        )
    for jobs in (2, 3):
        yield Case(f"update log in an object store, {jobs} starts", partial(Logs, jobs=jobs), logs.simulated)
