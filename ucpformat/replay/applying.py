"""One logged step, applied by an optimizer: what replay of a log and a replica in host memory have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

import torch

from ucpformat.errors import error
from ucpformat.model.values import decode
from ucpformat.replay.gradients import Receiver
from ucpformat.replay.tracked import by_name, group_names, optimizer_name
from ucpformat.state_dict.objects import WITH_TORCH

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ucpformat.replay.tracked import TrackedState
    from ucpformat.update_log.batch import Options, StepRecord
    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.steps import LoggedEntry

__all__ = ["Applier"]


@dataclass(frozen=True, slots=True)
class Applier:
    """Has an optimizer make the steps of an epoch: `step` for each one, in order."""

    optimizer: Optimizer
    parameters: tuple[Receiver, ...]
    values: tuple[Receiver, ...]

    @classmethod
    def of(
        cls, optimizer: Optimizer, state: TrackedState, epoch: Epoch, *, at: str, borrows: bool = False
    ) -> Self:
        """Return what applies the steps of an epoch to a state; ``borrows`` is that of `Receiver`.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` for tensors, groups or an optimizer other than those of the epoch (SPEC
                UCP-R-043).
        """
        names = by_name(state)
        if epoch.optimizer != optimizer_name(optimizer):
            message = f"the log is of {epoch.optimizer}, and this is {optimizer_name(optimizer)}"
            raise error("UCP-E-MISMATCH", message, at=at)
        logged = [[epoch.tensors[number].atom for number in group] for group in epoch.groups]
        mine = [list(group) for group in group_names(state)]
        if logged != mine:
            message = (
                f"the parameter groups of the optimizer are not those of the log: {_difference(mine, logged)}"
            )
            raise error("UCP-E-MISMATCH", message, at=at)
        pieces = epoch.pieces_by_tensor()
        parameters: list[Receiver] = []
        values: list[Receiver] = []
        for number, tensor in enumerate(epoch.tensors):
            one = names.get(tensor.atom)
            if one is None and tensor.role == "residual":
                continue  # whoever has no compressor with error feedback does without
            if one is None or one.described() != tensor:
                has = "nothing of that name" if one is None else f"{one.dtype} {list(one.shape)} ({one.role})"
                message = (
                    f"the log has {tensor.dtype} {list(tensor.shape)} ({tensor.role}), and the model {has}"
                )
                raise error("UCP-E-MISMATCH", message, at=tensor.atom)
            receivers = parameters if tensor.role == "gradient" else values
            receivers.append(Receiver.of(one, number, epoch, pieces[number], borrows=borrows))
        needed = {one.atom for one in state.tensors if one.role != "residual"}
        missing = sorted(needed - {tensor.atom for tensor in epoch.tensors})
        if missing:
            raise error("UCP-E-MISMATCH", "the model has a tensor that the log has not", at=missing[0])
        return cls(optimizer, tuple(parameters), tuple(values))

    def step(self, record: StepRecord, entries: Mapping[int, LoggedEntry], at: str) -> None:
        """Make one step, with the options of its record, and with what all ranks have logged of it, by piece.

        Raises:
            UcpError: ``UCP-E-VALUE`` for options, and what `Receiver.take` raises.
        """
        self.set_options(record.options, at)
        if not record.skipped:
            for receiver in self.parameters:
                receiver.one.tensor.grad = receiver.take(entries)
            self.optimizer.step()
        for receiver in self.values:
            receiver.replace(entries)

    def set_options(self, given: Options | None, at: str) -> None:
        """Give the optimizer options, where they are not those that it has; ``at`` is their place in messages."""
        for group, options in zip(self.optimizer.param_groups, given or (), strict=given is not None):
            for name, value in options.items():
                found = decode(value, at=f"{at}/options/{name}", restore=WITH_TORCH)
                if isinstance(group.get(name), torch.Tensor) and isinstance(found, torch.Tensor):
                    group[name].copy_(found)
                else:
                    group[name] = found


def _difference(mine: list[list[str]], logged: list[list[str]]) -> str:
    """Return the first group that differs, in words."""
    for number, (ours, theirs) in enumerate(zip_longest(mine, logged)):
        if ours is None or theirs is None:
            return f"it has {len(mine)}, and the log {len(logged)}"
        for one, other in zip_longest(ours, theirs):
            if one != other:
                return f"group {number} has {one or 'no more'} where the log has {other or 'no more'}"
    return "none differs"
