"""What a checkpoint of a log has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ucpformat.replay.plan import STATELESS
from ucpformat.replay.tracked import RESIDUALS
from ucpformat.state_dict.per_rank import PerRank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.replay.tracked import TrackedState

__all__ = ["checkpoint_content"]


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
