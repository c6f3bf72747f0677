"""A directory of checkpoints, local or behind a URL: a listing of it is the truth, there is no pointer beside it.

The checkpoint of step N is ``step-N.ucp``, committed when it has a root document. One that replaces it is written
beside it, as ``step-N.r1.ucp`` and so on: of those that are committed the last counts, so that there is one at any
time, in every store. What has another name is not ours.
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Final, Protocol

from ucpformat.errors import UcpError, error
from ucpformat.model.root import ROOT_KEY
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.draft import is_staged
from ucpformat.storage.stores.store import PREFIXES
from ucpformat.storage.stores.urls import local_path, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "METRICS",
    "RunDirectory",
    "is_of_a_checkpoint",
    "metrics_of",
    "metrics_to_keep",
    "open_run",
    "place_at",
    "step_name",
    "step_of",
]

METRICS: Final = "org.ucpformat.metrics"
"""The annotation of a root document that has its metrics: numbers by name, null for what is not finite."""

_STEP: Final = re.compile(r"step-(0|[1-9][0-9]*)(?:\.r([1-9][0-9]*))?\.ucp")
_DEBRIS: Final = re.compile(rf"(?:{_STEP.pattern})\.debris-[0-9a-f]{{8}}")


def step_name(step: int, revision: int = 0) -> str:
    """Name of the checkpoint of a step, or of the ``revision``-th that has replaced it.

    Raises:
        UcpError: ``UCP-E-NAME`` for a negative step.
    """
    if step < 0:
        raise error("UCP-E-NAME", "steps count from 0", at=str(step))
    return f"step-{step}.r{revision}.ucp" if revision else f"step-{step}.ucp"


def step_of(name: str) -> int | None:
    """Return the step whose checkpoint has this name."""
    found = _STEP.fullmatch(name)
    return None if found is None else int(found[1])


def revision_of(name: str) -> int:
    """Return how often the checkpoint of this name was replaced before it; 0 for a name of something else."""
    found = _STEP.fullmatch(name)
    return 0 if found is None else int(found[2] or 0)


def is_aside(name: str) -> bool:
    """Return whether this is what was moved out of the way to be removed: it is no longer written or read."""
    return _DEBRIS.fullmatch(name) is not None


def is_of_a_checkpoint(entry: str) -> bool:
    """Return whether a file or directory at the top of a checkpoint belongs there."""
    return entry == ROOT_KEY or is_staged(entry) or f"{entry}/" in PREFIXES


class Place(Protocol):
    """What a medium can do with the entries of a run's directory.

    `RunDirectory` calls these methods in any order. All raise `StoreError` (``UCP-E-STORE``) where the medium fails.
    """

    url: str

    def names(self) -> list[str]:
        """Return entries of the directory; none where there is no directory."""
        ...

    def child(self, name: str) -> str:
        """Return URL of an entry."""
        ...

    def age(self, name: str) -> float | None:
        """Return seconds since anything of an entry changed, by the clock of the medium; None where it does not say."""
        ...

    def is_foreign(self, name: str) -> bool:
        """Return whether an entry has what is no part of a checkpoint, or is a link: it is never removed."""
        ...

    def is_being_cleared(self, name: str) -> bool:
        """Return whether a process is removing the debris in an entry, or died while it did."""
        ...

    def remove(self, name: str) -> None:
        """Remove an entry: the root document first, durably, then the rest.

        Raises:
            StoreError: ``UCP-E-EXISTS`` where a writer is at work in it.
        """
        ...

    def clear(self, name: str, older_than: float) -> None:
        """Remove an entry that is debris, and has been for ``older_than`` seconds.

        Raises:
            StoreError: ``UCP-E-EXISTS``, and nothing is removed, where a checkpoint was committed in it meanwhile, or
                a writer is at work in it.
        """
        ...

    def abort_uploads(self, older_than: float, *, dry: bool) -> dict[str, int]:
        """Give up multipart uploads to checkpoints of which nothing has arrived for ``older_than`` seconds.

        Returns how many there were of each entry; none where the medium has no such uploads, or does not list them.
        With ``dry`` they are counted alone.
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
        """Return URL of the checkpoint of a step; where there is none, that of the first one that will be."""
        return self.place.child(self.name(step) or step_name(step))

    def require_no_checkpoint(self) -> bytes:
        """Refuse a directory that is itself a checkpoint; returns nothing to tell.

        Raises:
            UcpError: ``UCP-E-EXISTS``.
        """
        if self.is_checkpoint():
            message = "this is a checkpoint, and not a directory of them; give the one that it lies in"
            raise error("UCP-E-EXISTS", message, at=self.url)
        return b""

    def require_uncommitted(self, step: int) -> None:
        """Refuse a step that has a checkpoint.

        Raises:
            UcpError: ``UCP-E-EXISTS``.
        """
        if self.is_committed(step):
            message = "this step is committed already, and not by this manager; replace=True replaces it"
            raise error("UCP-E-EXISTS", message, at=self.path(step))

    def vacant(self, step: int) -> str:
        """Return URL for the next checkpoint of a step: beside the committed one, where there is one.

        What another process was clearing when it died is in nobody's way either.
        """
        names = self.names(step)
        last = names[-1] if names else step_name(step)
        if self._has_root(last) or self.place.is_being_cleared(last):
            last = step_name(step, revision_of(last) + 1)
        return self.place.child(last)

    def name(self, step: int) -> str | None:
        """Name of the committed checkpoint of a step, or None."""
        return next(filter(self._has_root, reversed(self.names(step))), None)

    def committed(self, step: int) -> list[str]:
        """Return the names of a step's committed checkpoint, and of those that it has replaced, if any is left."""
        return [*filter(self._has_root, reversed(self.names(step)))]

    def names(self, step: int) -> list[str]:
        """Return names of all that there is of a step, in the order of revisions, committed or not."""
        return self._named().get(step, [])

    def steps(self) -> list[int]:
        """Return committed steps, ascending."""
        return [step for step, names in self._named().items() if any(map(self._has_root, names))]

    def latest(self) -> int | None:
        """Return the greatest committed step."""
        named = self._named()
        return next((step for step in reversed(named) if any(map(self._has_root, named[step]))), None)

    def uncommitted(self) -> list[int]:
        """Return steps that have a place and no root document: being written, or debris."""
        return [step for step, names in self._named().items() if not any(map(self._has_root, names))]

    def without_root(self) -> list[str]:
        """Return names of what has no root document: being written, or debris."""
        return [name for names in self._named().values() for name in names if not self._has_root(name)]

    def replaced(self) -> dict[str, str]:
        """Return names of committed checkpoints, each with that of the committed one that has replaced it."""
        found: dict[str, str] = {}
        for names in self._named().values():
            committed = [name for name in names if len(names) > 1 and self._has_root(name)]
            for name in committed[:-1]:
                found[name] = committed[-1]
        return found

    def aside(self) -> list[str]:
        """Return names of what was moved out of the way and is not removed yet."""
        return sorted(name for name in self.place.names() if is_aside(name))

    def _named(self) -> dict[int, list[str]]:
        """Return names of checkpoints by step, ascending, and for each in the order of revisions."""
        found: dict[int, list[str]] = {}
        for name in sorted(self.place.names(), key=revision_of):
            if (step := step_of(name)) is not None:
                found.setdefault(step, []).append(name)
        return dict(sorted(found.items()))

    def is_committed(self, step: int) -> bool:
        """Return whether the step has a root document."""
        return self.name(step) is not None

    def is_checkpoint(self) -> bool:
        """Return whether this is no directory of checkpoints, but one itself."""
        return _has_root(self.place.url)

    def _has_root(self, name: str) -> bool:
        return _has_root(self.place.child(name))

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the finite metrics that a committed step was saved with.

        Raises:
            UcpError: what reading the root document raises.
        """
        with open_checkpoint(self.path(step)) as checkpoint:
            return metrics_of(checkpoint.root.envelope.annotations)


def _has_root(url: str) -> bool:
    store = open_store(url)
    try:
        return store.size(ROOT_KEY) is not None
    except UcpError as problem:
        if problem.code == "UCP-E-LINK":
            return False
        raise
    finally:
        store.close()


def metrics_of(annotations: Mapping[str, object]) -> dict[str, float]:
    """Return the finite metrics among the annotations of a root document; whatever else stands there is left out."""
    found = annotations.get(METRICS)
    if not isinstance(found, dict):
        return {}
    numbers = ((name, value) for name, value in found.items() if isinstance(value, int | float))
    return {name: float(value) for name, value in numbers}


def metrics_to_keep(metrics: Mapping[str, float], needed: str | None) -> dict[str, float | None]:
    """Return metrics as checkpoints keep them; null for what is not finite.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for what is no number, and where there are metrics, but not the one that is needed.
    """
    if metrics and needed is not None and needed not in metrics:
        message = (
            f"keep_best goes by {needed!r}, which is not among the metrics: {', '.join(map(repr, metrics))}"
        )
        raise error("UCP-E-MISMATCH", message, at="metrics")
    numbers: dict[str, float | None] = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise error("UCP-E-MISMATCH", f"a metric is a number, not {value!r}", at=name) from None
        numbers[name] = number if math.isfinite(number) else None
    return numbers


def foreign_among(entries: Sequence[str]) -> bool:
    """Return whether something at the top of a checkpoint is no part of one."""
    return not all(map(is_of_a_checkpoint, entries))


def open_run(url: str | os.PathLike[str]) -> RunDirectory:
    """Return the run directory at a local path or any fsspec URL; it need not exist yet."""
    return RunDirectory(place_at(url))


def place_at(url: str | os.PathLike[str]) -> Place:
    """Return the directory at a local path or any fsspec URL."""
    from ucpformat.manager.local_place import LocalPlace
    from ucpformat.manager.remote_place import RemotePlace

    path = local_path(url)
    return RemotePlace(os.fspath(url)) if path is None else LocalPlace(path)
