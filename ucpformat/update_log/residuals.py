"""Residuals of error feedback: in which states a log has them (SPEC-UPDATE-LOGS section 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.durability import ReplayedSteps

__all__ = ["has_residuals", "residual_pieces", "residuals_step"]


def residual_pieces(epoch: Epoch) -> frozenset[int]:
    """Return the numbers of the pieces of residuals; none of an epoch without error feedback."""
    return frozenset(
        number for number, piece in enumerate(epoch.pieces) if epoch.tensors[piece.tensor].role == "residual"
    )


def has_residuals(epoch: Epoch) -> bool:
    """Return whether the states of an epoch have residuals, be they stored or not."""
    return any(tensor.role == "residual" for tensor in epoch.tensors)


def residuals_step(begin: int, replayed: Sequence[ReplayedSteps]) -> int | None:
    """Return the last step with whose state a recovery could end, and whose residuals are stored.

    That is at worst ``begin``, the step of the checkpoint. None where the state at the end has no residuals.
    """
    if not replayed or not has_residuals(replayed[-1].epoch):
        return None
    for part in reversed(replayed):
        wanted = residual_pieces(part.epoch)
        ends = set.intersection(*(chain.ends() for chain in part.chains))
        for end in sorted((end for end in ends if part.begin < end <= part.stop), reverse=True):
            if wanted <= _pieces_of_last_step(part, end):
                return end
    return begin


def _pieces_of_last_step(part: ReplayedSteps, end: int) -> set[int]:
    return {
        entry.piece
        for chain in part.chains
        for batch in chain.batches
        if batch.header.stop_step == end
        for entry in batch.header.steps[-1].entries
    }
