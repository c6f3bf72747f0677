"""Removing what a run does not keep, and what attempts left that were never committed.

Nothing is removed but checkpoints that the retention gives up, and debris. Debris is what has no root document, is
locked by no writer, and in which nothing has changed for a while, by the clock of the store: a writer that is alive
changes something, or holds the lock. Where the store cannot say how old something is, it stays. What has anything in
it that is no part of a checkpoint stays as well. Whoever calls is not writing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.manager.run_directory import RunDirectory, step_name, step_of
from ucpformat.reader import open_checkpoint
from ucpformat.update_log.place import LOG_NAME, has_log

if TYPE_CHECKING:
    from ucpformat.manager.retention import Retention

__all__ = ["DEBRIS_AGE", "Collected", "collect", "first_fault"]

DEBRIS_AGE: Final = 86400.0
"""Seconds. An object store shows nothing of an object before all of it is uploaded, which may take hours."""


@dataclass(slots=True)
class Collected:
    """What came of a collection: steps that are kept, names that were removed, and by name what could not be.

    ``uploads`` are how many multipart uploads to each name were given up that nobody had completed. ``unjudged`` says
    why nobody knows which checkpoint is best, where that kept all.
    """

    kept: list[int] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failed: dict[str, UcpError] = field(default_factory=dict)
    uploads: dict[str, int] = field(default_factory=dict)
    unjudged: UcpError | None = None


def first_fault(url: str) -> UcpError | None:
    """Return why a committed checkpoint cannot be good, by its root and state documents and lengths of packs.

    Raises:
        UcpError: what says nothing about the checkpoint: the store fails, or the version or a feature is unknown.
    """
    try:
        with open_checkpoint(url) as checkpoint:
            checkpoint.state  # noqa: B018 - reads and checks it
            for pack in checkpoint.packs or ():
                if (size := checkpoint.store.size(pack.key)) != pack.length:
                    what = "is missing" if size is None else f"has {size} bytes, not {pack.length}"
                    raise error("UCP-E-LENGTH" if size else "UCP-E-MISSING", f"the pack {what}", at=pack.key)
    except UcpError as fault:
        if is_damage(fault.code):
            return fault
        raise
    return None


def is_damage(code: str) -> bool:
    """Return whether an error of this code says that the checkpoint itself is damaged."""
    return code in _DAMAGE


_DAMAGE: Final = frozenset(
    f"UCP-E-{name}"
    for name in (
        "NOT-FOUND",
        "JSON",
        "FORMAT",
        "DIGEST",
        "SCHEMA",
        "REFERENCE",
        "TABLE",
        "SEGMENT",
        "ZARR",
        "MISSING",
        "LENGTH",
        "CHECKSUM",
        "CODEC",
        "PADDING",
        "CONTENT",
    )
)


def collect(
    run: RunDirectory,
    retention: Retention,
    *,
    protected: Collection[int] = (),
    damaged: Collection[int] = (),
    debris_age: float = DEBRIS_AGE,
    metrics: dict[int, Mapping[str, float]] | None = None,
    dry: bool = False,
) -> Collected:
    """Remove what ``retention`` gives up, what was replaced, and debris that is older than ``debris_age`` seconds.

    Multipart uploads that nobody has completed, and that have got no part for so long, are debris: parts are stored,
    and paid for, and no listing of objects shows them.

    ``protected`` steps are kept, whatever it says; ``damaged`` ones stay and do not count. ``metrics`` keeps what was
    read, from call to call. Before a good checkpoint goes, the one that it makes place for, the last of those protected
    or of all, has to open and have its packs: otherwise all stay, and it is among what failed. The newest one that an
    update log of the run goes on from stays: without it no step of the log could be recovered. With ``dry`` nothing is
    removed.
    """
    found = Collected()
    steps = [step for step in run.steps() if step not in damaged]
    known = {} if metrics is None else metrics
    unknown: set[int] = set()
    if retention.metric is not None:
        for step in steps:
            if step not in known:
                try:
                    known[step] = run.metrics(step)
                except UcpError as problem:
                    found.failed[step_name(step)] = problem
                    unknown.add(step)
        if retention.is_unjudged(steps, known):
            found.unjudged = _unknown_metric(retention.metric, known)
    replaced = run.replaced()
    for name, by in replaced.items():
        if step_of(name) not in damaged:
            fault = first_fault(run.place.child(by))
            if fault is None:
                _remove(run.place.remove, name, found, dry=dry)
            else:
                found.failed[by] = fault
    # What was replaced would count again, were only the checkpoint removed that has replaced it.
    unknown.update(step for step in steps if {*run.names(step)} & replaced.keys() - {*found.removed})
    kept = retention.kept(steps, known) | set(protected).intersection(steps) | unknown.intersection(steps)
    if kept != set(steps):
        kept.update(_beginning_of_log(run, steps))
    if kept != set(steps):
        newest = max(set(protected).intersection(steps), default=steps[-1])
        fault = first_fault(run.path(newest))
        if fault is not None:
            found.failed[step_name(newest)] = fault
            kept = set(steps)
    found.kept = sorted(kept)
    for step in steps:
        if step not in kept:
            known.pop(step, None)
            _remove(run.place.remove, run.name(step) or step_name(step), found, dry=dry)
    for name in [*run.without_root(), *run.aside()]:
        if _is_debris(run, name, debris_age, found):
            _remove(partial(run.place.clear, older_than=debris_age), name, found, dry=dry)
    try:
        found.uploads.update(run.place.abort_uploads(debris_age, dry=dry))
    except UcpError as problem:
        found.failed[run.url] = problem
    return found


def _beginning_of_log(run: RunDirectory, steps: Sequence[int]) -> Iterator[int]:
    """Yield the newest step whose checkpoint says that a log goes on from it, if the run has a log."""
    if not has_log(f"{run.url}/{LOG_NAME}"):
        return
    for step in reversed(steps):
        with suppress(UcpError), open_checkpoint(run.path(step)) as checkpoint:
            if checkpoint.root.log is not None:
                yield step
                return


def _unknown_metric(metric: str, known: Mapping[int, Mapping[str, float]]) -> UcpError:
    others = sorted({name for metrics in known.values() for name in metrics})
    what = f"they have {', '.join(map(repr, others))}" if others else "they have no metrics"
    message = f"no checkpoint has a finite metric {metric!r} ({what}), so that all are kept"
    return error("UCP-E-MISMATCH", message, at="metric")


def _is_debris(run: RunDirectory, name: str, debris_age: float, found: Collected) -> bool:
    try:
        if name in found.removed or run.place.is_foreign(name):
            return False
        age = run.place.age(name)
    except UcpError as problem:
        if problem.code != "UCP-E-MISSING":
            found.failed[name] = problem
        return False
    return age is not None and age >= debris_age


def _remove(remove: Callable[[str], None], name: str, found: Collected, *, dry: bool) -> None:
    try:
        if not dry:
            remove(name)
        found.removed.append(name)
    except UcpError as problem:
        found.failed[name] = problem
