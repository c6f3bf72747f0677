"""A directory of checkpoints, local or behind a URL: a listing of it is the truth, there is no pointer beside it.

The checkpoint of step N is ``step-N.ucp``, committed when it has a root document. What has another name is not ours.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, Protocol

from ucpformat.errors import UcpError, error
from ucpformat.model.root import ROOT_KEY
from ucpformat.reader import open_checkpoint
from ucpformat.storage.directory_claim import is_staged
from ucpformat.storage.store import PREFIXES, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "METRICS",
    "RunDirectory",
    "is_of_a_checkpoint",
    "metrics_of",
    "open_run",
    "place_at",
    "step_name",
    "step_of",
]

METRICS: Final = "org.ucpformat.metrics"
"""The annotation of a root document that has its metrics: numbers by name, null for what is not finite."""

_STEP: Final = re.compile(r"step-(0|[1-9][0-9]*)\.ucp")
_DEBRIS: Final = re.compile(r"step-(0|[1-9][0-9]*)\.ucp\.debris-[0-9a-f]{8}")


def step_name(step: int) -> str:
    """Name of the checkpoint of a step.

    Raises:
        UcpError: ``UCP-E-NAME`` for a negative step.
    """
    if step < 0:
        raise error("UCP-E-NAME", "steps count from 0", at=str(step))
    return f"step-{step}.ucp"


def step_of(name: str) -> int | None:
    """The step whose checkpoint has this name."""
    found = _STEP.fullmatch(name)
    return None if found is None else int(found[1])


def is_aside(name: str) -> bool:
    """Whether this is what was moved out of the way to be removed: nobody writes or reads it any more."""
    return _DEBRIS.fullmatch(name) is not None


def is_of_a_checkpoint(entry: str) -> bool:
    """Whether a file or directory at the top of a checkpoint belongs there."""
    return entry == ROOT_KEY or is_staged(entry) or f"{entry}/" in PREFIXES


class Place(Protocol):
    """What a medium can do with the entries of a directory. Errors are `StoreError` (``UCP-E-STORE``)."""

    url: str

    def names(self) -> list[str]:
        """Entries of the directory; none where there is no directory."""
        ...

    def child(self, name: str) -> str:
        """URL of an entry."""
        ...

    def age(self, name: str) -> float | None:
        """Seconds since anything of an entry changed, by the clock of the medium; None where it does not say."""
        ...

    def is_foreign(self, name: str) -> bool:
        """Whether an entry has what is no part of a checkpoint, or is a link: it is never removed."""
        ...

    def remove(self, name: str) -> None:
        """Remove an entry: the root document first, durably, then the rest.

        Raises:
            StoreError: ``UCP-E-EXISTS`` where a writer is at work in it.
        """
        ...


class RunDirectory:
    """The checkpoints of one run."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def url(self) -> str:
        """Where it is."""
        return self.place.url

    def path(self, step: int) -> str:
        """URL of the checkpoint of a step, whether there is one or not."""
        return self.place.child(step_name(step))

    def steps(self) -> list[int]:
        """Committed steps, ascending."""
        return [step for step in self._named() if self.is_committed(step)]

    def latest(self) -> int | None:
        """The greatest committed step."""
        return next((step for step in reversed(self._named()) if self.is_committed(step)), None)

    def uncommitted(self) -> list[int]:
        """Steps that have a place and no root document: being written, or debris."""
        return [step for step in self._named() if not self.is_committed(step)]

    def aside(self) -> list[str]:
        """Names of what was moved out of the way and is not removed yet."""
        return sorted(name for name in self.place.names() if is_aside(name))

    def _named(self) -> list[int]:
        return sorted(step for name in self.place.names() if (step := step_of(name)) is not None)

    def is_committed(self, step: int) -> bool:
        """Whether the step has a root document."""
        store = open_store(self.path(step))
        try:
            return store.size(ROOT_KEY) is not None
        except UcpError as problem:
            if problem.code == "UCP-E-LINK":
                return False
            raise
        finally:
            store.close()

    def metrics(self, step: int) -> Mapping[str, float]:
        """The finite metrics that a committed step was saved with.

        Raises:
            UcpError: what reading the root document raises.
        """
        with open_checkpoint(self.path(step)) as checkpoint:
            return metrics_of(checkpoint.root.envelope.annotations)

    def remove(self, step: int) -> None:
        """Remove the checkpoint of a step, the root document first."""
        self.place.remove(step_name(step))


def metrics_of(annotations: Mapping[str, object]) -> dict[str, float]:
    """The finite metrics among the annotations of a root document; whatever else stands there is left out."""
    found = annotations.get(METRICS)
    if not isinstance(found, dict):
        return {}
    numbers = ((name, value) for name, value in found.items() if isinstance(value, int | float))
    return {name: float(value) for name, value in numbers}


def foreign_among(entries: Sequence[str]) -> bool:
    """Whether something at the top of a checkpoint is no part of one."""
    return not all(map(is_of_a_checkpoint, entries))


def open_run(url: str | os.PathLike[str]) -> RunDirectory:
    """The run directory at a local path or any fsspec URL; it need not exist yet."""
    return RunDirectory(place_at(url))


def place_at(url: str | os.PathLike[str]) -> Place:
    """The directory at a local path or any fsspec URL."""
    from ucpformat.manager.local_place import LocalPlace
    from ucpformat.manager.remote_place import RemotePlace

    text = os.fspath(url)
    if text.startswith("file://"):
        return LocalPlace(text.removeprefix("file://"))
    if "://" not in text and "::" not in text:
        return LocalPlace(text)
    return RemotePlace(text)
