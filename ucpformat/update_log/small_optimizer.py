"""Replay with the small optimizer that the specification defines (SPEC-UPDATE-LOGS section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.storage.host_memory import selection
from ucpformat.update_log.durability import extent_of
from ucpformat.update_log.forms import places_of, rows_of, values_of
from ucpformat.update_log.steps import entries_of, require_agreement, steps_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.update_log.reading import StoredLog
    from ucpformat.update_log.steps import LoggedEntry

__all__ = ["SMALL_OPTIMIZER", "replay_small"]

SMALL_OPTIMIZER: Final = "ucp.sgd"
_FLOAT: Final = np.dtype(np.float32)

Values = dict[str, "NDArray[np.float32]"]


def replay_small(log: StoredLog, values: Values, step: int) -> int:
    """Bring the values of tensors, by atom, in place from a step to the durable state of the log; returns its step.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for a log of another optimizer, of other data types, or of tensors without values;
            what reading raises.
    """
    extent = extent_of(log)
    if extent is None:
        return step
    for stored, cut in extent.branch:
        epoch = stored.epoch
        stop = extent.stop_step if cut is None else min(cut, extent.stop_step)
        if stop <= step:
            continue
        if epoch.optimizer != SMALL_OPTIMIZER:
            raise error(
                "UCP-E-MISMATCH", f"the log is of {epoch.optimizer}, not of {SMALL_OPTIMIZER}", at=log.url
            )
        for tensor in epoch.tensors:
            value = values.get(tensor.atom)
            if tensor.dtype != "float32" or value is None or value.shape != tensor.shape:
                raise error("UCP-E-MISMATCH", "the log has another tensor of this name", at=tensor.atom)
        groups = {tensor: number for number, members in enumerate(epoch.groups) for tensor in members}
        ranks = [steps_from(log, log.chain(epoch.epoch, rank), step) for rank in range(epoch.ranks)]
        for _ in range(step, stop):
            steps = [next(rank) for rank in ranks]
            require_agreement(steps, epoch)
            rates = [_rate(options, steps[0].at) for options in steps[0].record.options or ()]
            for number, logged in entries_of(steps, epoch).items():
                piece = epoch.pieces[number]
                tensor = epoch.tensors[piece.tensor]
                part = values[tensor.atom][selection(piece.box, type(piece.box).whole(tensor.shape))]
                if tensor.role == "value":
                    part[...] = values_of(logged.entry, logged.data, piece.shape, _FLOAT)
                else:
                    _apply(part, logged, piece.shape, rates[groups[piece.tensor]])
        step = stop
    return step


def _rate(options: Any, at: str) -> np.float32:
    rate = options.get("lr")
    if isinstance(rate, dict) and isinstance(rate.get("$float"), str):
        rate = float(rate["$float"])
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise error("UCP-E-MISMATCH", "the options of a group have no number lr", at=at)
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
