"""What ``ucp ls`` and ``ucp gc`` say of the update log of a run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ucpformat.cadence import Cadence
from ucpformat.errors import UcpError
from ucpformat.manager.pace import CADENCE
from ucpformat.reader import open_checkpoint
from ucpformat.replay.plan import log_url, oldest_usable
from ucpformat.text import counted, human_bytes
from ucpformat.update_log.durability import require_on_branch
from ucpformat.update_log.overview import overview
from ucpformat.update_log.place import LogPlace, has_log
from ucpformat.update_log.pruning import prune
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ucpformat.manager.run_directory import RunDirectory
    from ucpformat.model.root import Progress
    from ucpformat.update_log.overview import EpochOverview
    from ucpformat.update_log.pruning import Pruned
    from ucpformat.update_log.reading import Stretch

__all__ = ["LogOfRun", "PrunedLog", "newest_cadence", "pruned"]


class PrunedLog(NamedTuple):
    """What was removed of a log, and the step of the checkpoint for which the rest stays, if any needs it."""

    pruned: Pruned
    oldest: int | None
    debris: int

    def to_json(self) -> dict[str, Any]:
        """Return what programs are told."""
        return {**self.pruned._asdict(), "kept_for": self.oldest, "debris": self.debris}

    def lines(self, removed: str) -> Iterator[str]:
        """Yield it in words, of which the first are ``removed`` or the like."""
        one = self.pruned
        rest = f"{_batches(one.kept)}, {human_bytes(one.kept_bytes)}"
        needed = "though no checkpoint goes on with them"
        if self.oldest is not None:
            needed = f"for step {self.oldest} and later"
        freed = f"{_batches(one.removed)} of the update log: frees {human_bytes(one.removed_bytes)}"
        yield f"{removed} {freed}; {rest} stay {needed}"
        if self.debris:
            yield f"{removed} {counted(self.debris, 'unfinished file')} of the update log"


class LogOfRun(NamedTuple):
    """The log of a run as its documents and the headers of batches show it, or why it cannot be read."""

    identity: str | None
    branch: Sequence[Stretch]
    epochs: Sequence[EpochOverview]
    problem: UcpError | None = None

    @classmethod
    def of(cls, run: str) -> Self | None:
        """Return that of a run; None where there is none."""
        if not has_log(log_url(run)):
            return None
        try:
            with StoredLog(log_url(run), verify=False) as log:
                return cls(log.document.id, log.branch(), [*overview(log)])
        except UcpError as problem:
            return cls(None, [], [], problem)

    def to_json(self) -> dict[str, Any]:
        """Return what programs are told."""
        return {
            "id": self.identity,
            "epochs": [one.to_json() for one in self.epochs],
            "problem": None if self.problem is None else self.problem.problem().to_json(),
        }

    def line(self) -> str:
        """Return it in one sentence."""
        if self.problem is not None:
            return f"update log: {self.problem}"
        counting = [one for one in self.epochs if one.counts]
        batches = _batches(sum(one.batches for one in self.epochs))
        size = human_bytes(sum(one.bytes for one in self.epochs))
        given_up = len(self.epochs) - len(counting)
        tail = f", {given_up} given up" if given_up else ""
        steps = f"steps {counting[0].first_step} to {counting[-1].stop_step}" if counting else "no steps"
        return (
            f"update log: {steps} in {len(counting)} epochs{tail}; {size} in {batches}; `ucp log` says more"
        )

    def position(self, progress: Progress | None, step: int) -> str:
        """Return where in the log a checkpoint is, in a word or two."""
        position = None if progress is None else progress.log
        if position is None:
            return "no log"
        if self.problem is not None:
            return "unknown"
        if position.id != self.identity:
            return "another log"
        try:
            require_on_branch(self.branch, position.epoch, step, "")
        except UcpError:
            return "given up"
        return f"epoch {position.epoch}"


def pruned(run: RunDirectory, kept: Collection[int], *, debris_age: float, dry: bool) -> PrunedLog | None:
    """Remove what no recovery needs of the log of a run whose checkpoints of some steps are kept, and debris in it.

    Where none of them can be gone on from, all that counts stays.

    Raises:
        UcpError: what is wrong with the documents of the log, and what removing raises.
    """
    url = log_url(run.url)
    if not has_log(url):
        return None
    place = LogPlace(url)
    try:
        with StoredLog(url, verify=False) as log:
            oldest = oldest_usable(log, run, kept)
            found = prune(log, place, -1 if oldest is None else oldest, dry=dry)
        debris = place.debris(debris_age)
        for path in () if dry else debris:
            path.unlink(missing_ok=True)
        return PrunedLog(found, oldest, len(debris))
    finally:
        place.close()


def newest_cadence(run: RunDirectory) -> Cadence | None:
    """Return how often full checkpoints were saved, and why, as the newest one that can be read and says so has it."""
    for step in reversed(run.steps()):
        with suppress(UcpError), open_checkpoint(run.path(step)) as checkpoint:
            found = Cadence.from_json(checkpoint.root.envelope.annotations.get(CADENCE))
            if found is not None:
                return found
    return None


def _batches(count: int) -> str:
    return f"{count:,} batch{'' if count == 1 else 'es'}"
