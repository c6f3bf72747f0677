"""Options of `UpdateLog`: what is refused of them, and what those that are left to it become."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final, Literal

from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.replay.replica.options import Replica

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ucpformat.update_log.documents import Epoch

__all__ = [
    "gradient_bytes",
    "require_kinds",
    "require_of_replica",
    "require_same_groups",
    "require_steps",
    "steps_of_batch",
]

_BATCH_BYTES: Final = 1 << 18
_MOST_STEPS: Final = 64


def require_steps(**numbers: object) -> None:
    """Refuse what is no number of steps; raises ``UCP-E-MISMATCH``."""
    for name, number in numbers.items():
        if not (number in ("auto", None) or (type(number) is int and number > 0)):
            raise error("UCP-E-MISMATCH", f"{name}= is a number of steps, not {number!r}", at=name)


def require_kinds(after: object, compressor: object, replica: object, pending_bytes: object) -> None:
    """Refuse what is of another kind than `UpdateLog` takes, before it does anything; raises ``UCP-E-MISMATCH``."""
    for name, value, is_right, what in (
        ("after", after, after is None or hasattr(after, "next_epoch"), "what recover() has returned"),
        ("compressor", compressor, compressor is None or hasattr(compressor, "compress"), "a compressor"),
        ("replica", replica, isinstance(replica, bool | Replica), "True, False or a Replica"),
        ("pending_bytes", pending_bytes, type(pending_bytes) is int and pending_bytes >= 0, "a number"),
    ):
        if not is_right:
            raise error("UCP-E-MISMATCH", f"{name}= is {what}, not {value!r}", at=name)


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


def require_same_groups(optimizer: Optimizer, epoch: Epoch, at: str) -> None:
    """Refuse an optimizer that was given other parameters than those of an epoch; raises ``UCP-E-MISMATCH``."""
    sizes = [len(options["params"]) for options in optimizer.param_groups]
    if sizes != list(map(len, epoch.groups)):
        message = "the optimizer has other parameter groups than before; begin another log, after recover()"
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
