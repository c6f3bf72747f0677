"""What a checkpoint of a log has."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ucpformat.model.dtype import dtype
from ucpformat.replay.plan import STATELESS
from ucpformat.replay.state_sums import slots_of
from ucpformat.replay.tracked import RESIDUALS
from ucpformat.state_dict.per_rank import PerRank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.replay.tracked import TrackedState

__all__ = ["checkpoint_bytes", "checkpoint_content"]


def checkpoint_bytes(optimizer: Optimizer, tracked: TrackedState) -> int:
    """Return the bytes of the tensors of a checkpoint, whatever rank holds them."""
    return sum(
        prod(one.shape) * dtype(one.dtype).item_bytes
        for one in tracked.tensors
        for _ in slots_of(one, optimizer)
    )


def checkpoint_content(
    model: Module, optimizer: Optimizer, tracked: TrackedState, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the state of a checkpoint: model, optimizer, residuals, and each rank's own values."""
    content: dict[str, Any] = {"model": model, "optim": optimizer}
    if values:
        content["own"] = PerRank(values, on_resize="keep")
    residuals = {
        one.atom.removeprefix(f"{RESIDUALS}."): one.tensor
        for one in tracked.tensors
        if one.role == "residual"
    }
    if residuals:
        content[RESIDUALS] = residuals
    # Torch makes states of zeros for a checkpoint of a fresh optimizer, which are not the same as none.
    content[STATELESS] = [
        one.atom for one in tracked.tensors if one.role == "gradient" and not optimizer.state.get(one.tensor)
    ]
    return content
