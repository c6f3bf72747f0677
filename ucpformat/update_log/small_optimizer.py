"""Replay with the small optimizer that the specification defines (SPEC-UPDATE-LOGS section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.storage.host_memory import selection
from ucpformat.update_log.documents import least_exact
from ucpformat.update_log.durability import extent_of
from ucpformat.update_log.forms import places_of, rows_of, values_of
from ucpformat.update_log.steps import require_places, whole_steps
from ucpformat.update_log.sums import box_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ucpformat.update_log.documents import Epoch, Exactness
    from ucpformat.update_log.reading import Chain, StoredLog
    from ucpformat.update_log.steps import LoggedEntry, WholeStep

__all__ = ["SMALL_OPTIMIZER", "SmallRecovery", "replay_small"]

SMALL_OPTIMIZER: Final = "ucp.sgd"
_FLOAT: Final = np.dtype(np.float32)
_MODULUS: Final = 1 << 64

Values = dict[str, "NDArray[np.float32]"]


class SmallRecovery(NamedTuple):
    """Where a recovery has ended, and how exact it is."""

    step: int
    exactness: Exactness


def replay_small(
    log: StoredLog, values: Values, begin: tuple[int, int], *, allow_loss: bool = False
) -> SmallRecovery:
    """Bring the values of tensors, by atom, in place from an epoch and a step to the end of the log.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for a log of another optimizer, of other data types, or of tensors without values;
            ``UCP-E-LOG`` for a state that is not on the branch, durable steps that would be lost, and other sums than
            those of the log; what reading raises.
    """
    _, step = begin
    extent = extent_of(log, begin)
    if extent.lost and not allow_loss:
        what = extent.faults[0] if extent.faults else None
        message = f"durable steps lie behind step {extent.stop_step}"
        raise error("UCP-E-LOG", message, at=log.url if what is None else what.at)
    exactness: Exactness = "bitwise"
    unknown: set[str] = set()
    for replayed in extent.replayed:
        epoch = replayed.epoch
        _require_same(epoch, values, log.url)
        # The profile of this optimizer is empty.
        found = "tolerance" if epoch.exactness == "bitwise" and epoch.profile else epoch.exactness
        exactness = least_exact((exactness, found))
        steps = whole_steps(log, epoch, replayed.chains, step)
        while step < replayed.stop:
            made = next(steps)
            _make(epoch, made, values)
            unknown = _without_residuals(epoch, made)
            step += 1
            _require_sums(log.url, epoch, replayed.chains, step, values)
    for atom in unknown:
        values[atom][...] = 0
    return SmallRecovery(step, exactness)


def _without_residuals(epoch: Epoch, step: WholeStep) -> set[str]:
    """Return the atoms of residuals that are not stored of the state behind a step (SPEC UCP-R-046)."""
    stored = {epoch.pieces[number].tensor for number in step.entries}
    return {
        tensor.atom
        for number, tensor in enumerate(epoch.tensors)
        if tensor.role == "residual" and 0 not in tensor.shape and number not in stored
    }


def _require_same(epoch: Epoch, values: Values, at: str) -> None:
    if epoch.optimizer != SMALL_OPTIMIZER:
        raise error("UCP-E-MISMATCH", f"the log is of {epoch.optimizer}, not of {SMALL_OPTIMIZER}", at=at)
    for tensor in epoch.tensors:
        value = values.get(tensor.atom)
        if tensor.dtype != "float32" or value is None or value.dtype != _FLOAT or value.shape != tensor.shape:
            raise error("UCP-E-MISMATCH", "the log has another tensor of this name", at=tensor.atom)


def _make(epoch: Epoch, step: WholeStep, values: Values) -> None:
    """Make a step that all ranks have logged."""
    groups = {tensor: number for number, members in enumerate(epoch.groups) for tensor in members}
    rates = [_rate(options, step.ranks[0].at) for options in step.ranks[0].record.options or ()]
    for number, logged in step.entries.items():
        piece = epoch.pieces[number]
        require_places(logged, piece.shape)
        tensor = epoch.tensors[piece.tensor]
        part = values[tensor.atom][selection(piece.box, Box.whole(tensor.shape))]
        if tensor.role != "gradient":
            part[...] = values_of(logged.entry, logged.data, piece.shape, _FLOAT)
        else:
            _apply(part, logged, piece.shape, rates[groups[piece.tensor]])


def _rate(options: Any, at: str) -> np.float32:
    rate = options.get("lr")
    if isinstance(rate, dict) and isinstance(rate.get("$float"), str):
        rate = float(rate["$float"])
    if len(options) != 1 or isinstance(rate, bool) or not isinstance(rate, int | float):
        raise error("UCP-E-MISMATCH", f"{SMALL_OPTIMIZER} has one option, the number lr", at=at)
    with np.errstate(all="ignore"):
        return np.float32(rate)


def _apply(part: NDArray[Any], logged: LoggedEntry, shape: tuple[int, ...], rate: np.float32) -> None:
    """Make a step of a piece; elements that are not there are not changed by a gradient of zero."""
    gradient: NDArray[Any] = values_of(logged.entry, logged.data, shape, _FLOAT)
    with np.errstate(all="ignore"):
        match logged.entry.form:
            case "dense":
                part -= rate * gradient
            case "sparse":
                places = places_of(logged.entry, logged.data, part.size, at=logged.at)
                whole = np.zeros(part.size, _FLOAT)
                whole[places] = gradient
                part -= rate * whole.reshape(shape)
            case "rows":
                rows = rows_of(logged.entry, logged.data, shape[0], at=logged.at)
                part[rows] = part[rows] - rate * gradient


def _require_sums(url: str, epoch: Epoch, chains: Sequence[Chain], step: int, values: Values) -> None:
    """Refuse a state whose sums are not those that all ranks together have of it (SPEC UCP-R-044)."""
    ended = [batch.header for chain in chains for batch in chain.batches if batch.header.stop_step == step]
    if len(ended) < epoch.ranks:
        return
    wanted: dict[tuple[int, str], int] = {}
    for header in ended:
        for one in header.sums:
            key = one.tensor, one.slot
            wanted[key] = (wanted.get(key, 0) + one.sum) % _MODULUS
    for (number, slot), value in wanted.items():
        tensor = epoch.tensors[number]
        found = box_sum(values[tensor.atom], Box.whole(tensor.shape), tensor.shape)
        if slot != "value" or found != value:
            message = f"the log has another sum of {tensor.atom!r}/{slot} behind step {step}"
            raise error("UCP-E-LOG", message, at=url)
