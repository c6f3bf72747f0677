"""Sums of parameters and of an optimizer's states, by which recovery proves itself (SPEC-UPDATE-LOGS section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ucpformat.replay.tracked import flat_elements, local_of, piece_view
from ucpformat.update_log.batch import Sum
from ucpformat.update_log.sums import box_sum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.optim import Optimizer

    from ucpformat.replay.capture import Owned
    from ucpformat.replay.tracked import Tracked, TrackedState

__all__ = ["slots_of", "state_sums"]

_MODULUS = 1 << 64


def state_sums(
    state: TrackedState,
    optimizer: Optimizer,
    owned: Owned,
) -> tuple[Sum, ...]:
    """Return sums of what this rank logs: of each tensor, and of each state of the optimizer that has its shape.

    Residuals have none, since replay does not make them.
    """
    found: list[Sum] = []
    for number, one in enumerate(state.tensors):
        mine = [piece for piece in one.pieces if (number, piece.box.offset, piece.box.shape) in owned]
        if not mine or one.role == "residual":
            continue
        for slot, tensor in slots_of(one, optimizer):
            elements = flat_elements(local_of(tensor), one.atom)
            total = sum(
                box_sum(piece_view(elements, piece.local, piece.box), piece.box, one.shape) for piece in mine
            )
            found.append(Sum(number, slot, total % _MODULUS))
    return tuple(found)


def slots_of(one: Tracked, optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield a tensor as the slot ``value``, and the states of the optimizer that have its shape, by their names."""
    yield "value", one.tensor
    states: Mapping[str, Any] = optimizer.state.get(one.tensor, {}) if one.role == "gradient" else {}
    for name, value in sorted(states.items()):
        if isinstance(value, torch.Tensor) and value.ndim and tuple(value.shape) == tuple(one.tensor.shape):
            yield name, value
