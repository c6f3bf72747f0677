"""Options of `UpdateLog`: what is refused of them, and what those that are left to it become."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Final, Literal

import torch

from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.replay.replica.options import Replica

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ucpformat.replay.tracked import TrackedState
    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.place import LogPlace

__all__ = [
    "gradient_bytes",
    "has_same_groups",
    "require_kinds",
    "require_of_replica",
    "require_same_groups",
    "steps_of_batch",
]

_BATCH_BYTES: Final = 1 << 18
_MOST_STEPS: Final = 64
_BATCH_SECONDS: Final = 1.0
"""Between batches in an object store, where each request is paid for, and to be waited for."""


def _is_number(value: object) -> bool:
    return type(value) is int and value > 0


def _is_optional(kind: str) -> Callable[[object], bool]:
    return lambda value: value is None or (not isinstance(value, type) and hasattr(value, kind))


_STEPS: Final = "a number of steps"
_KINDS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "model": (lambda value: isinstance(value, torch.nn.Module), "a module of torch"),
    "optimizer": (lambda value: isinstance(value, torch.optim.Optimizer), "an optimizer of torch"),
    "state": (
        lambda value: (
            value is None or (isinstance(value, Mapping) and all(type(name) is str for name in value))
        ),
        'a dict of objects by name, such as {"schedule": schedule}',
    ),
    "after": (_is_optional("next_epoch"), "what recover() has returned"),
    "compressor": (_is_optional("compress"), "a compressor, such as TopK(0.01)"),
    "replica": (lambda value: isinstance(value, bool | Replica), "True, False or a Replica"),
    "pending_bytes": (lambda value: type(value) is int and value >= 0, "a number of bytes"),
    "keep_full": (_is_number, "a number of checkpoints, at least one"),
    "batch": (lambda value: value == "auto" or _is_number(value), f'{_STEPS}, or "auto"'),
    "full_every": (lambda value: value in ("auto", None) or _is_number(value), f'{_STEPS}, "auto" or None'),
    "check_every": (_is_number, _STEPS),
    "residuals_every": (lambda value: value is None or _is_number(value), f"{_STEPS}, or None"),
    **dict.fromkeys(
        ("rng", "keep_residuals", "allow_loss", "allow_other_options"),
        (lambda value: type(value) is bool, "True or False"),
    ),
}


def require_kinds(**given: object) -> None:
    """Refuse arguments of another kind than `UpdateLog` and `recover` take, by name; raises ``UCP-E-MISMATCH``."""
    for name, value in given.items():
        is_right, what = _KINDS[name]
        if not is_right(value):
            raise error("UCP-E-MISMATCH", f"{name}= is {what}, not {reprlib.repr(value)}", at=name)


def require_of_replica(batch: object, residuals: object, mtbf: float | None) -> None:
    """Refuse what a replica does not do; raises ``UCP-E-MISMATCH``."""
    if batch != "auto":
        raise error("UCP-E-MISMATCH", "a replica gets each step by itself; leave batch= out", at="batch")
    if mtbf is not None:
        message = "a replica goes by the times of its own saves; leave mtbf= out"
        raise error("UCP-E-MISMATCH", message, at="mtbf")
    if residuals is not None:
        message = (
            "a replica does not get residuals; log without one, or take a compressor without error feedback"
        )
        raise error("UCP-E-MISMATCH", message, at="compressor")


def require_scaler(scaler: object) -> None:
    """Refuse what is no gradient scaler; raises ``UCP-E-MISMATCH``."""
    if scaler is not None and not hasattr(scaler, "step"):
        message = (
            f"step() takes a GradScaler, and not {scaler!r}; a step with a closure cannot be logged: call backward() "
            "yourself"
        )
        raise error("UCP-E-MISMATCH", message, at="scaler")


def has_same_groups(optimizer: Optimizer, state: TrackedState) -> bool:
    """Return whether an optimizer has the parameters that are logged, and no others."""
    groups = [[id(one) for one in options["params"]] for options in optimizer.param_groups]
    return groups == [[id(state.tensors[number].tensor) for number in group] for group in state.groups]


def require_same_groups(optimizer: Optimizer, state: TrackedState, at: str) -> None:
    """Refuse an optimizer that was given other parameters than those that are logged; raises ``UCP-E-MISMATCH``."""
    if not has_same_groups(optimizer, state):
        message = (
            "the optimizer has other parameters or groups than before; begin another log, after recover()"
        )
        raise error("UCP-E-MISMATCH", message, at=at)


def gradient_bytes(epoch: Epoch, rank: int | None = None) -> int:
    """Return the bytes of the gradients of all ranks together, or of those that one of them logs."""
    tensors = [epoch.tensors[piece.tensor] for piece in epoch.pieces]
    return sum(
        prod(piece.shape) * dtype(tensor.dtype).item_bytes
        for piece, tensor in zip(epoch.pieces, tensors, strict=True)
        if tensor.role == "gradient" and rank in (None, piece.rank)
    )


def steps_of_batch(batch: int | Literal["auto"], nbytes: int) -> int:
    """Return how many steps are written together, where their gradients have so many bytes."""
    return batch if batch != "auto" else max(1, min(_MOST_STEPS, _BATCH_BYTES // max(1, nbytes)))


def seconds_of_batch(batch: int | Literal["auto"], place: LogPlace) -> float:
    """Return how many seconds pass at least from one batch to the next."""
    return _BATCH_SECONDS if place.is_remote and batch == "auto" else 0.0
