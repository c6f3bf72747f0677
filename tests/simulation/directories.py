"""Writers, collectors and managers at one directory, with the real `LocalStore` and `LocalPlace`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.simulation.file_system import FileSystem, Inode, Locks
from tests.simulation.schedule import Killed, Schedule, ViolationError
from ucpformat.errors import UcpError
from ucpformat.manager import local_place
from ucpformat.manager.local_place import LocalPlace
from ucpformat.model.root import ROOT_KEY, Storage
from ucpformat.storage.stores import directory_claim, draft, linking, local, local_io, local_objects
from ucpformat.storage.stores.linking import LinkSource
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.store import Store

__all__ = ["Directories", "attempt", "refusals", "simulated"]

RUN, NAME = "/run", "step-1.ucp"
PLACE = f"{RUN}/{NAME}"
BASE = "step-0.ucp"
SHARED = "packs/base"

_EXPECTED = ("UCP-E-EXISTS", "UCP-E-MISSING", "UCP-E-STORE", "UCP-E-NOT-FOUND")


@contextmanager
def refusals() -> Iterator[None]:
    """An actor may be refused, stopped or killed; any other error is none that a user should see."""
    try:
        yield
    except (KeyboardInterrupt, Killed, ViolationError):
        pass
    except UcpError as refusal:
        if refusal.code not in _EXPECTED:
            raise ViolationError(f"an error that nobody expects: {refusal}") from refusal
    except Exception as reason:
        raise ViolationError(f"an error that is not registered: {reason!r}") from reason


def attempt(store: Store, name: str, storage: Storage, committed: Callable[[str], None]) -> None:
    """What `CheckpointWriter` does with a store, without its threads: begin, write, commit, or give up."""
    keys = ["atoms/a"] if storage == "plain" else [f"packs/{name}"]
    data = f"data of {name}".encode()
    try:
        store.prepare(storage)
        try:
            for key in keys:
                store.create(key, [memoryview(data)])
            root = json.dumps({key: data.decode() for key in keys}).encode()
            store.flush(keys, root)
            store.publish(root)
        except BaseException:
            with suppress(Exception):
                store.discard()
            raise
        committed(name)
    finally:
        store.close()


def attempt_with_base(
    store: Store,
    name: str,
    storage: Storage,
    committed: Callable[[str], None],
    *,
    keys: tuple[str, str],
    is_shared: Callable[[], bool],
) -> None:
    """What an increment does: it shares what the base has, or writes that itself, and then its own."""
    data = dict(zip(keys, ("data of base", f"data of {name}"), strict=True))
    try:
        store.prepare(storage)
        try:
            for key in keys:
                if key != keys[0] or not is_shared():
                    store.create(key, [memoryview(data[key].encode())])
            root = json.dumps(data).encode()
            store.flush(keys, root)
            store.publish(root)
        except BaseException:
            with suppress(Exception):
                store.discard()
            raise
        committed(name)
    finally:
        store.close()


def _is_linked(store: LocalStore) -> bool:
    path = Path(f"{RUN}/{BASE}/{SHARED}")
    simulated_os: Any = _Through("")
    try:
        descriptor = simulated_os.open(path, 0)
    except FileNotFoundError:  # removed by now: the bytes are written anew
        return False
    try:
        return store.share(SHARED, LinkSource(path, descriptor))
    finally:
        simulated_os.close(descriptor)


class SimulatedStore(LocalStore):
    """A store whose descriptors are the simulation's: nobody may close them once its schedule has ended.

    Python deletes a store whenever it collects garbage, which may be while another schedule runs, or none.
    """

    def __del__(self) -> None:
        pass


@dataclass
class Directories:
    """A run directory with a place for one checkpoint, and who is at work there.

    ``cast`` names the actors: ``writer``, ``collector`` (clears what has no root document), ``manager`` (removes what
    is committed, on purpose), ``sharer`` (a writer whose base is another checkpoint of the run), ``remover`` (of that).
    ``debris``: an attempt that died has left something.
    """

    schedule: Schedule
    cast: Sequence[str] = ("writer", "writer")
    storage: Storage = "packed"
    locks: Locks = "none"
    links: bool = True
    exclusive_renames: bool = True
    debris: bool = False
    writer: Callable[..., None] = attempt
    acknowledged: str | None = None
    medium: FileSystem = field(init=False)

    def __post_init__(self) -> None:
        self.medium = FileSystem(
            self.schedule, locks=self.locks, links=self.links, exclusive_renames=self.exclusive_renames
        )
        run = self.medium._make(is_directory=True)
        self.medium.top.names["run"] = run
        if self.debris:
            place, packs = (self.medium._make(is_directory=True) for _ in range(2))
            run.names[NAME] = place
            place.names["packs"] = packs
            packs.names["dead"] = self.medium._make(is_directory=False)
            place.names[".ucp.json.dead"] = self.medium._make(is_directory=False)
        if "sharer" in self.cast:
            base, packs, pack, root = (self.medium._make(is_directory=number < 2) for number in range(4))
            run.names[BASE], base.names["packs"], packs.names["base"], base.names[ROOT_KEY] = (
                base,
                packs,
                pack,
                root,
            )
            pack.data, root.data = b"data of base", json.dumps({SHARED: "data of base"}).encode()
        _install(self.medium)

    def actors(self) -> Sequence[Callable[[], None]]:
        """In the order of the cast."""
        roles = {
            "writer": self._write,
            "collector": self._collect,
            "manager": self._remove,
            "sharer": self._share,
            "remover": self._remove_base,
        }
        return [partial(roles[role], f"{role}-{number}") for number, role in enumerate(self.cast)]

    def _write(self, name: str) -> None:
        with refusals():
            self.writer(SimulatedStore(PLACE, durability="none"), name, self.storage, self._acknowledge)

    def _acknowledge(self, name: str) -> None:
        self.acknowledged = name
        self.schedule.done()

    def _collect(self, name: str) -> None:
        del name
        found = self.medium.at(PLACE)
        # As the listing of a collection finds it; what comes after is what this is about.
        if found is None or ROOT_KEY in found.names:
            return
        with refusals():
            LocalPlace(RUN).clear(NAME, 0)

    def _remove(self, name: str) -> None:
        del name
        with refusals():
            LocalPlace(RUN).remove(NAME)

    def _share(self, name: str) -> None:
        with refusals():
            store = SimulatedStore(PLACE, durability="none")
            attempt_with_base(
                store,
                name,
                self.storage,
                self._acknowledge,
                keys=(SHARED, f"packs/{name}"),
                is_shared=lambda: _is_linked(store),
            )

    def _remove_base(self, name: str) -> None:
        del name
        with refusals():
            LocalPlace(RUN).remove(BASE)

    def check(self) -> None:
        """A root document that is seen is whole, and one that was acknowledged is seen."""
        base = self.medium.at(f"{RUN}/{BASE}")
        if base is not None and (its_root := base.names.get(ROOT_KEY)) is not None:
            self._require_whole(base, its_root)
        place = self.medium.at(PLACE)
        root = None if place is None else place.names.get(ROOT_KEY)
        if root is not None and place is not None:
            self._require_whole(place, root)
        if "manager" in self.cast and any(self._is_acknowledged(data) for data in self.medium.removed):
            self.acknowledged = None  # removed on purpose, and perhaps before its writer said so
        if self.acknowledged is not None and not (root is not None and self._is_acknowledged(root.data)):
            raise ViolationError(f"what {self.acknowledged} was told to have committed is not there")

    def _is_acknowledged(self, root: bytes) -> bool:
        return self.acknowledged is not None and self.acknowledged.encode() in root

    @staticmethod
    def _require_whole(place: Inode, root: Inode) -> None:
        try:
            reached = json.loads(root.data)
        except ValueError:
            raise ViolationError("half a root document is seen") from None
        for key, data in reached.items():
            room, _, name = key.partition("/")
            found = place.names.get(room)
            inode = None if found is None else found.names.get(name)
            if inode is None or inode.data != data.encode():
                raise ViolationError(f"the root document reaches {key}, which is not there or another's")

    def finish(self) -> None:
        """An attempt afterwards commits, or is told what is in its way."""
        self.check()
        before = self.acknowledged
        try:
            self.writer(
                SimulatedStore(PLACE, durability="none"), "afterwards", self.storage, self._acknowledge
            )
        except UcpError as refusal:
            if refusal.code != "UCP-E-EXISTS" and self.medium.links | self.medium.exclusive_renames:
                raise ViolationError(f"an attempt afterwards met {refusal}") from refusal
        else:
            if before is not None:
                raise ViolationError("two were told that they have committed")
        self.check()


_medium: FileSystem | None = None


class _Through:
    """The module that code under test sees: what the medium of the schedule that runs now has."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        return getattr(getattr(_medium, self._name) if self._name else _medium, member)


def _install(medium: FileSystem) -> None:
    global _medium
    _medium = medium
    draft._exclusive_by.clear()


@contextmanager
def simulated() -> Iterator[None]:
    """Local stores call the simulation in place of the system."""
    with ExitStack() as stack:
        for module in (local, local_objects, local_io, draft, directory_claim, linking, local_place):
            stack.enter_context(patch.object(module, "os", _Through("")))
        for module, name in (
            (directory_claim, "fcntl"),
            (directory_claim, "shutil"),
            (local_place, "shutil"),
        ):
            stack.enter_context(patch.object(module, name, _Through(name)))
        stack.enter_context(
            patch.object(draft, "rename_exclusively", lambda *names: _Through("").rename_exclusively(*names))
        )
        stack.enter_context(patch.dict(draft._exclusive_by, clear=True))
        yield
