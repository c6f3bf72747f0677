"""Writers, collectors and managers at one URL, with the real `RemoteStore` and `RemotePlace`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import fsspec

from tests.simulation.directories import BASE, attempt, attempt_with_base, refusals
from tests.simulation.object_store import ObjectStore
from tests.simulation.schedule import Schedule, ViolationError
from ucpformat.errors import UcpError, error
from ucpformat.manager import remote_place
from ucpformat.manager.remote_place import RemotePlace
from ucpformat.model.root import ROOT_KEY, Storage
from ucpformat.storage.stores.remote import conditional_put, copies, objects, repetition
from ucpformat.storage.stores.remote import store as remote
from ucpformat.storage.stores.remote.access import translated
from ucpformat.storage.stores.remote.store import RemoteStore

__all__ = ["Stores", "simulated"]

RUN, NAME = "run", "step-1.ucp"
PLACE = f"{RUN}/{NAME}"
DAY = 86400.0


@dataclass
class Stores:
    """A prefix of an object store, and who is at work there: as in `Directories`.

    A collector takes what has not changed for a day for dead. That day passes at some point of the schedule; but no
    request is under way for a day, and no writer stands still so long between a look at the clock and the next
    request, which puts the root document or removes. A manager removes a checkpoint where no attempt is under way,
    nor a request of one. ADR 0012 says that this is assumed.
    """

    schedule: Schedule
    cast: Sequence[str] = ("writer", "writer")
    storage: Storage = "packed"
    is_conditional: bool = True
    debris: bool = False
    writer: Callable[..., None] = attempt
    place_of_copies: Storage = "plain"
    acknowledged: str | None = None
    under_way: int = 0
    medium: ObjectStore = field(init=False)

    def __post_init__(self) -> None:
        self.medium = ObjectStore(self.schedule, is_conditional=self.is_conditional)
        if self.debris:
            self.medium.objects[f"{PLACE}/packs/dead"] = b"dead"
            self.medium.changed[f"{PLACE}/packs/dead"] = 0.0
        if "sharer" in self.cast or "copier" in self.cast:
            pack = f"{self._prefix}/base"
            self.medium._put(f"{RUN}/{BASE}/{pack}", b"data of base")
            self.medium._put(f"{RUN}/{BASE}/{ROOT_KEY}", json.dumps({pack: "data of base"}).encode())
        _install(self.medium)

    @property
    def _prefix(self) -> str:
        return "atoms" if self.storage == "plain" else "packs"

    def actors(self) -> Sequence[Callable[[], None]]:
        """In the order of the cast."""
        roles = {
            "writer": self._write,
            "collector": self._collect,
            "manager": self._remove,
            "sharer": self._share,
            "copier": self._copy,
            "remover": self._remove_base,
            "replacer": self._replace_base,
        }
        return [partial(roles[role], f"{role}-{number}") for number, role in enumerate(self.cast)]

    def _write(self, name: str) -> None:
        self.under_way += 1
        with refusals():
            self.writer(RemoteStore(f"gs://{PLACE}"), name, self.storage, self._acknowledge)
        self.under_way -= 1

    def _share(self, name: str) -> None:
        """A writer with a base: copies have keys of its own, but in storage plain."""
        self.under_way += 1
        keys = ("atoms/a", "atoms/b")
        if self.storage == "packed":
            keys = (self.key_of_shared(name), f"packs/{name}")
        with refusals():
            store, base = RemoteStore(f"gs://{PLACE}"), RemoteStore(f"gs://{RUN}/{BASE}")

            def is_shared() -> bool:
                with suppress(UcpError), base.sharable(f"{self._prefix}/base") as source:
                    # What it is about to share has been compared, or was written by the attempt of this mark.
                    return self.medium.objects.get(source.path) == b"data of base" and store.share(
                        keys[0], source
                    )
                return False

            attempt_with_base(store, name, self.storage, self._acknowledge, keys=keys, is_shared=is_shared)
        self.under_way -= 1

    def _copy(self, name: str) -> None:
        """Whoever copies the base has its keys, and its very root document."""
        del name
        self.under_way += 1
        key = f"{self._prefix}/base"
        with refusals():
            store, base = RemoteStore(f"gs://{PLACE}"), RemoteStore(f"gs://{RUN}/{BASE}")
            try:
                store.prepare(self.place_of_copies)
                try:
                    if store.copy(key, base) is None:
                        store.create(key, [memoryview(b"data of base")])
                    store.flush()
                    if store.read(key, 0, 12) != b"data of base":
                        raise error("UCP-E-MISSING", "the copy does not verify", at=key)
                    store.publish(json.dumps({key: "data of base"}).encode())
                except BaseException:
                    with suppress(Exception):
                        store.discard()
                    raise
                self._acknowledge("base")
            finally:
                store.close()
        self.under_way -= 1

    @staticmethod
    def key_of_shared(name: str) -> str:
        """As `Base` makes one for an attempt."""
        return f"packs/{name}-base"

    def _remove_base(self, name: str) -> None:
        del name
        with refusals():
            RemotePlace(f"gs://{RUN}").remove(BASE)

    def _replace_base(self, name: str) -> None:
        """Somebody puts another checkpoint in the place of the base, with an object of the same length and key."""
        path = f"{RUN}/{BASE}"
        with refusals(), translated(BASE):
            RemotePlace(f"gs://{RUN}").remove(BASE)
            for key, data in ((f"{self._prefix}/base", b"other base"), (ROOT_KEY, b"{}")):
                self.medium.pipe_file(f"{path}/{key}", data.ljust(12))

    def _acknowledge(self, name: str) -> None:
        self.acknowledged = name
        self.schedule.done()

    def _collect(self, name: str) -> None:
        del name
        self.schedule.point("a day passes")
        if any(
            name.startswith((f"put {PLACE}/{ROOT_KEY}", "remove")) for name in self.medium.waiting.values()
        ):
            return
        self.schedule.forget_late()
        self.medium.now += 2 * DAY
        with refusals():
            with translated(NAME):
                found = self.medium.find(PLACE)
            if f"{PLACE}/{ROOT_KEY}" not in found:
                RemotePlace(f"gs://{RUN}").clear(NAME, DAY)

    def _remove(self, name: str) -> None:
        del name
        self.schedule.point("somebody wants the checkpoint removed")
        if self.under_way or self.schedule.awaits_late or f"{PLACE}/{ROOT_KEY}" not in self.medium.objects:
            return
        with refusals():
            RemotePlace(f"gs://{RUN}").remove(NAME)

    def check(self) -> None:
        """A root document that is seen is whole, and one that was acknowledged is seen."""
        root = self.medium.objects.get(f"{PLACE}/{ROOT_KEY}")
        if root is not None:
            for key, data in json.loads(root).items():
                if self.medium.objects.get(f"{PLACE}/{key}") != data.encode():
                    raise ViolationError(f"the root document reaches {key}, which is not there or another's")
        if "manager" in self.cast and any(self._is_acknowledged(data) for data in self.medium.removed):
            self.acknowledged = None
        if self.acknowledged is not None and not (root is not None and self._is_acknowledged(root)):
            raise ViolationError(f"what {self.acknowledged} was told to have committed is not there")

    def _is_acknowledged(self, root: bytes) -> bool:
        return self.acknowledged is not None and self.acknowledged.encode() in root

    def finish(self) -> None:
        """An attempt afterwards commits, or is told what is in its way."""
        self.check()
        before = self.acknowledged
        try:
            self.writer(RemoteStore(f"gs://{PLACE}"), "afterwards", self.storage, self._acknowledge)
        except UcpError as refusal:
            if refusal.code != "UCP-E-EXISTS" and self.is_conditional:
                raise ViolationError(f"an attempt afterwards met {refusal}") from refusal
        else:
            if before is not None:
                raise ViolationError("two were told that they have committed")
        self.check()


class _AtOnce(Executor):
    """What others do in the background is done in the thread of the actor, which is the one that has its turn."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(task(*arguments, **options))
        except Exception as failure:
            done.set_exception(failure)
        return done


_medium: ObjectStore | None = None


def _install(medium: ObjectStore) -> None:
    global _medium
    _medium = medium
    conditional_put._known.clear()


def _opened(url: str) -> tuple[Any, str]:
    return _medium, url.removeprefix("gs://")


def _reached(url: str) -> Callable[[str], bool] | None:
    """As that of `remote_place`, of the root documents here."""
    root = None if _medium is None else _medium.objects.get(f"{url.removeprefix('gs://')}/{ROOT_KEY}")
    return None if root is None else json.loads(root).__contains__


@contextmanager
def simulated() -> Iterator[None]:
    """Remote stores send their requests to the simulation."""
    clock = SimpleNamespace(time=lambda: 0.0 if _medium is None else _medium.now, sleep=lambda _: None)
    with (
        patch.object(objects, "file_system", _opened),
        patch.object(remote, "time", clock),
        patch.object(repetition, "time", clock),
        patch.object(fsspec.core, "url_to_fs", _opened),
        patch.object(conditional_put, "_known", set()),
        patch.object(copies, "ForkedExecutor", _AtOnce),
        patch.object(remote_place, "_reached", _reached),
    ):
        yield
