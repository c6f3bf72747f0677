"""No order of operations breaks a commit, and a protocol that does not hold is found out (SPEC 8.1 to 8.3).

This is the short form; `make simulate` runs a million schedules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation import directories, stores
from tests.simulation.cases import cases
from tests.simulation.directories import Directories
from tests.simulation.schedule import Bounds, Schedule, ViolationError, World, explore
from tests.simulation.stores import Stores
from ucpformat.manager.local_place import LocalPlace
from ucpformat.model.root import ROOT_KEY, Storage
from ucpformat.storage.stores.directory_claim import DirectoryClaim
from ucpformat.storage.stores.draft import Draft
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.remote.conditional_put import ConditionalPuts
from ucpformat.storage.stores.remote.copies import BackgroundCopies
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.storage.stores.store import Store


@pytest.mark.parametrize("bounds", [Bounds(1, 0), Bounds(2, 0), Bounds(1, 1)], ids=str)
def test_no_schedule_breaks_the_invariant(bounds: Bounds) -> None:
    """UCP-W-009, UCP-W-010: the first schedules of every world; the first of all commits."""
    for case in cases():
        case.explore(bounds, 12).require_whole()


@pytest.mark.parametrize("world", [Directories, Stores])
def test_what_nobody_disturbs_commits(world: Callable[..., Any]) -> None:
    """A simulation in which everybody fails would find nothing."""
    simulated = directories.simulated if world is Directories else stores.simulated
    for storage in ("packed", "plain"):
        made: list[Any] = []

        def make(schedule: Schedule, storage: str = storage, made: list[Any] = made) -> World:
            made.append(world(schedule, cast=("writer",), storage=storage))
            result: World = made[-1]
            return result

        with simulated():
            assert explore(make, Bounds(0, 0)).is_all
        assert made[0].acknowledged == "writer-0"


def test_a_schedule_is_the_same_each_time() -> None:
    found: list[list[str]] = []
    real = Schedule.run

    def run(self: Schedule, make: Callable[[Schedule], World]) -> None:
        real(self, make)
        found.append([line for line in self.trace if "probe" not in line])

    with stores.simulated(), patch.object(Schedule, "run", run):
        for _ in range(2):
            explore(Stores, Bounds(1, 1), 20)
    assert len(found[0]) > 4
    assert found[:20] == found[20:]
    assert len({tuple(trace) for trace in found}) > 10


# Protocols that do not hold.


def root_first(store: Store, name: str, storage: Storage, committed: Callable[[str], None]) -> None:
    """The root document before what it reaches."""
    store.prepare(storage)
    store.publish(json.dumps({f"packs/{name}": name}).encode())
    store.create(f"packs/{name}", [memoryview(name.encode())])
    committed(name)
    store.close()


@contextmanager
def remembering() -> Iterator[None]:
    """What is published is what was told to be (the first finding)."""
    done: set[int] = set()
    publish, withdraw = LocalStore.publish, LocalStore.withdraw

    def told(self: LocalStore, data: bytes) -> None:
        publish(self, data)
        done.add(id(self))

    def remembered(self: LocalStore) -> bool:
        withdraw(self)
        return id(self) not in done

    looks = patch.object(Draft, "is_published", lambda self: False)
    with patch.object(LocalStore, "publish", told), patch.object(LocalStore, "withdraw", remembered), looks:
        yield


@contextmanager
def clearing_by_listing() -> Iterator[None]:
    """Debris is what had no root document when it was listed (the third finding)."""

    def condemn(self: DirectoryClaim) -> bool:
        return True

    with (
        patch.object(DirectoryClaim, "condemn", condemn),
        patch.object(DirectoryClaim, "has_root", lambda self: False),
    ):
        yield


@contextmanager
def collecting_by_listing() -> Iterator[None]:
    """A collection removes what it has listed, root documents as well (the fourth finding)."""
    with patch.object(LocalPlace, "clear", lambda self, name, older_than: self.remove(name)):
        yield


@contextmanager
def looking_before_a_rename() -> Iterator[None]:
    """A check, and then a rename that replaces (the fourth finding)."""

    def put(self: Draft) -> None:
        medium = directories._medium
        assert medium is not None
        directory = medium._handles[self._directory]
        medium.schedule.point("look for a root document")
        if ROOT_KEY in directory.names:
            raise FileExistsError
        medium.schedule.point("rename the draft")
        directory.names[ROOT_KEY] = directory.names.pop(self.name)
        medium.schedule.done()

    with patch.object(Draft, "_put_in_place", put), patch.object(DirectoryClaim, "_others", lambda self: []):
        yield


@contextmanager
def removing_what_others_write() -> Iterator[None]:
    """A save clears what lies at its URL before it writes (the second finding)."""
    prepare = RemoteStore.prepare

    def eager(self: RemoteStore, storage: Storage = "packed") -> None:
        prepare(self, storage)
        self._remove(self._debris)

    with patch.object(RemoteStore, "prepare", eager):
        yield


@contextmanager
def believing_answers() -> Iterator[None]:
    """A put that was told to have failed has: what it would reach is removed."""

    def put(self: ConditionalPuts, path: str, data: bytes) -> None:
        self._put(path, data)

    def forgetful(self: RemoteStore) -> bool:
        return True

    with patch.object(ConditionalPuts, "put", put), patch.object(RemoteStore, "withdraw", forgetful):
        yield


@contextmanager
def copying_blindly() -> Iterator[None]:
    """What is copied is taken for what was listed."""
    with patch.object(BackgroundCopies, "_require_same", lambda *_: None):
        yield


@contextmanager
def copying_to_the_same_key() -> Iterator[None]:
    """Attempts that share a pack have it under the key that the base has."""
    with patch.object(Stores, "key_of_shared", lambda *_: "packs/base"):
        yield


@contextmanager
def not_waiting_for_copies() -> Iterator[None]:
    """A copy that has failed is nothing to hear of."""
    with patch.object(BackgroundCopies, "finish", lambda _: None), patch.object(RemoteStore, "flush"):
        yield


@contextmanager
def giving_the_claim_back() -> Iterator[None]:
    """In storage plain, a copy that nobody has answered is taken for one that was not made."""
    stop = BackgroundCopies.stop
    with patch.object(BackgroundCopies, "stop", lambda self: stop(self) or True):
        yield


@contextmanager
def nothing_broken() -> Iterator[None]:
    """As it is."""
    yield


BROKEN: list[tuple[str, Callable[[], AbstractContextManager[None]], type, dict[str, Any], Bounds]] = [
    ("root first", nothing_broken, Directories, {"writer": root_first}, Bounds(0, 0)),
    ("root first, remote", nothing_broken, Stores, {"writer": root_first}, Bounds(0, 0)),
    ("remembers", remembering, Directories, {"cast": ("writer",)}, Bounds(0, 1)),
    ("clears by listing", clearing_by_listing, Directories, {"storage": "plain"}, Bounds(2, 0)),
    (
        "collects by listing",
        collecting_by_listing,
        Directories,
        {"cast": ("writer", "collector")},
        Bounds(2, 0),
    ),
    ("looks, then renames", looking_before_a_rename, Directories, {"links": False}, Bounds(3, 0)),
    ("clears before it writes", removing_what_others_write, Stores, {}, Bounds(2, 0)),
    ("copies blindly", copying_blindly, Stores, {"cast": ("sharer", "replacer")}, Bounds(1, 0)),
    ("copies to one key", copying_to_the_same_key, Stores, {"cast": ("sharer", "sharer")}, Bounds(2, 0)),
    ("awaits no copies", not_waiting_for_copies, Stores, {"cast": ("sharer",)}, Bounds(0, 1)),
    (
        "gives its claim back",
        giving_the_claim_back,
        Stores,
        {"cast": ("sharer", "writer"), "storage": "plain"},
        Bounds(1, 1),
    ),
    (
        "copies without a claim",
        nothing_broken,
        Stores,
        {"cast": ("copier", "copier"), "place_of_copies": "packed"},
        Bounds(2, 1),
    ),
    ("believes answers", believing_answers, Stores, {"cast": ("writer",)}, Bounds(1, 1)),
]


@pytest.mark.parametrize(
    ("change", "world", "options", "bounds"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_a_protocol_that_does_not_hold_is_found_out(
    change: Callable[[], AbstractContextManager[None]],
    world: Callable[..., World],
    options: dict[str, Any],
    bounds: Bounds,
) -> None:
    simulated = directories.simulated if world is Directories else stores.simulated
    with simulated(), change():
        found = explore(lambda schedule: world(schedule, **options), bounds)
    assert found.broken is not None
    with pytest.raises(ViolationError):
        found.require_whole()
