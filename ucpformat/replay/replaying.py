"""Steps of a log, made again by an optimizer (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ucpformat.jsonio import equal
from ucpformat.replay.applying import Applier
from ucpformat.replay.exactness import profile_of
from ucpformat.replay.own_values import RNG, decoded
from ucpformat.replay.state_sums import state_sums
from ucpformat.replay.tracked import shared_out
from ucpformat.update_log.ahead import made_ahead
from ucpformat.update_log.documents import least_exact
from ucpformat.update_log.residuals import has_residuals, residual_pieces
from ucpformat.update_log.steps import whole_steps

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ucpformat.distributed.group import Group
    from ucpformat.jsonio import JsonValue
    from ucpformat.replay.capture import Owned
    from ucpformat.replay.tracked import TrackedState
    from ucpformat.update_log.batch import BatchHeader
    from ucpformat.update_log.documents import Epoch, Exactness
    from ucpformat.update_log.reading import StoredLog

__all__ = ["LiveJob", "Replay", "Replayed", "SumsDifferError", "own_values_differ"]

_MODULUS: Final = 1 << 64
_AHEAD_BYTES: Final = 1 << 26


class SumsDifferError(Exception):
    """The state is not that of training: ``step`` is where that was seen, ``good`` the last step where it was."""

    def __init__(self, step: int, good: int, what: str) -> None:
        super().__init__(what)
        self.step = step
        self.good = good


@dataclass(frozen=True, slots=True)
class LiveJob:
    """The job whose optimizer makes the steps, on this rank; ``rank`` counts in the order of the group."""

    optimizer: Optimizer
    tracked: TrackedState
    group: Group
    rank: int


class Replayed(NamedTuple):
    """What a replay has come to.

    ``checked`` sums were compared. ``values`` are this rank's own; ``values_differ`` says that they are those of the
    first rank of a job of another size, whose ranks had not all the same. ``has_residuals`` says whether the state has
    any, None where no step was made, and then ``residuals_are_stored`` whether the log has them.
    """

    exactness: Exactness
    checked: int = 0
    values: Mapping[str, Any] | None = None
    has_residuals: bool | None = None
    residuals_are_stored: bool = False
    values_differ: bool = False


class Replay:
    """Steps ``[step, stop)`` of a log, made again by the optimizer of a job."""

    def __init__(self, job: LiveJob, log: StoredLog, step: int, stop: int) -> None:
        self._job = job
        self._log = log
        self._step = step
        self._stop = stop
        self._good = step
        self._checked = 0
        self._values: Mapping[str, Any] | None = None
        self._has_residuals: bool | None = None
        self._residuals_are_stored = False
        self._values_differ = False

    def run(self) -> Replayed:
        """Replay; returns what it has come to."""
        exactness: Exactness = "bitwise"
        for stored, cut in self._log.branch():
            stop = self._stop if cut is None else min(cut, self._stop)
            if stop <= self._step:
                continue
            epoch = stored.epoch
            exactness = least_exact((exactness, self._exactness(epoch)))
            with _without_hooks_before_steps(self._job.optimizer):
                self._epoch(epoch, stop, is_exact=self._exactness(epoch) == "bitwise")
        for one in self._job.tracked.tensors:
            one.tensor.grad = None
        return Replayed(
            exactness,
            self._checked,
            self._values,
            self._has_residuals,
            self._residuals_are_stored,
            self._values_differ,
        )

    def _exactness(self, epoch: Epoch) -> Exactness:
        own = profile_of(self._job.optimizer, self._job.tracked)
        if epoch.exactness == "bitwise" and dict(epoch.profile) != own:
            return "tolerance"
        return epoch.exactness

    def applier(self, epoch: Epoch) -> Applier:
        """Return what applies the steps of an epoch; raises ``UCP-E-MISMATCH`` (SPEC UCP-R-043)."""
        return Applier.of(self._job.optimizer, self._job.tracked, epoch, at=self._log.url)

    def _epoch(self, epoch: Epoch, stop: int, *, is_exact: bool) -> None:
        applier = self.applier(epoch)
        owned = self._owned()
        chains = [self._log.chain(epoch.epoch, rank, self._step) for rank in range(epoch.ranks)]
        ended: list[BatchHeader | None] = []
        residuals = residual_pieces(epoch)
        self._has_residuals = has_residuals(epoch)
        source = whole_steps(self._log, epoch, chains, self._step)
        with made_ahead(source, lambda step: step.nbytes, most_bytes=_AHEAD_BYTES) as steps:
            while self._step < stop:
                step = next(steps)
                applier.step(step.ranks[0].record, step.entries, step.ranks[0].at)
                self._step += 1
                self._residuals_are_stored = residuals <= step.entries.keys()
                ended = step.ended
                headers = [header for header in ended if header is not None]
                if len(headers) == epoch.ranks:
                    self._end_of_batch(headers, epoch, owned, is_exact=is_exact)
        own = ended[self._job.rank if epoch.ranks == len(self._job.group.ranks) else 0] if ended else None
        if own is not None:
            applier.set_options(own.options, f"batches/{epoch.epoch}")
            self._values = decoded(own.values, f"batches/{epoch.epoch}")
            others = [header.values for header in ended if header is not None]
            self._values_differ = epoch.ranks != len(self._job.group.ranks) and own_values_differ(others)

    def _owned(self) -> Owned:
        """Return which boxes this rank sums, so that all ranks together sum each element once."""
        _, pieces = shared_out(self._job.tracked, self._job.group)
        return {
            (piece.tensor, piece.offset, piece.shape): number
            for number, piece in enumerate(pieces)
            if piece.rank == self._job.rank
        }

    def _end_of_batch(
        self,
        headers: Sequence[BatchHeader],
        epoch: Epoch,
        owned: Owned,
        *,
        is_exact: bool,
    ) -> None:
        """Compare the sums that the log has of this state with those of the state."""
        logged: dict[str, int] = {}
        for header in headers:
            for one in header.sums:
                key = f"{epoch.tensors[one.tensor].atom}/{one.slot}"
                logged[key] = (logged.get(key, 0) + one.sum) % _MODULUS
        if not logged or not is_exact:
            return
        tracked = self._job.tracked
        mine = {
            f"{tracked.tensors[one.tensor].atom}/{one.slot}": one.sum
            for one in state_sums(tracked, self._job.optimizer, owned)
        }
        found: dict[str, int] = {}
        for text in self._job.group.all_gather(json.dumps(mine).encode()):
            for key, value in json.loads(text).items():
                found[key] = (found.get(key, 0) + value) % _MODULUS
        for key, value in sorted(logged.items()):
            if found.get(key) != value:
                raise SumsDifferError(self._step, self._good, f"{key} has another sum than the log has")
        self._good = self._step
        self._checked += len(logged)


@contextmanager
def _without_hooks_before_steps(optimizer: Optimizer) -> Iterator[None]:
    """Keep hooks away from gradients: the log has what they made of them already."""
    hooks = optimizer._optimizer_step_pre_hooks
    kept = list(hooks.items())
    hooks.clear()
    try:
        yield
    finally:
        hooks.update(kept)


def own_values_differ(values: Sequence[Mapping[str, JsonValue]]) -> bool:
    """Return whether ranks have other values of their own than the first one, beside random number generators."""
    plain = [{name: value for name, value in one.items() if name != RNG} for one in values]
    return not all(equal(one, plain[0]) for one in plain)
