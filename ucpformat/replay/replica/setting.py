"""What a replica is of, and which jobs can have one."""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ucpformat.distributed.arena import extent
from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.replay.replica.image import require_known

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ucpformat.distributed.group import Group
    from ucpformat.update_log.documents import Epoch

__all__ = ["Setting", "require_local"]


def require_local(url: str, group: Group, optimizer: Optimizer) -> None:
    """Refuse a job that can have no replica.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``.
    """
    if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        message = "a replica needs memory files and handles of processes, which Linux has; log without one"
        raise error("UCP-E-MISMATCH", message, at="replica")
    if url.startswith("memory://"):
        message = (
            "another process does not see what this one has in its memory; save to a directory or a store"
        )
        raise error("UCP-E-MISMATCH", message, at=url)
    if len(group.ranks) > 1 and list(group.ranks) != list(range(_world())):
        message = "replicas are of all ranks of a job, and not of a group of some; log without them"
        raise error("UCP-E-MISMATCH", message, at="replica")
    require_known(optimizer)


def _world() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class Setting(NamedTuple):
    """What a replica is of: a run, the log there, an epoch of it, and how its checkpoints are saved and kept."""

    run: str
    url: str
    epoch: Epoch
    digest: str
    full_every: int | str | None
    keep_full: int
    group: Group
    held: frozenset[int]
    """Pieces of the epoch that this rank has."""

    @property
    def step_bytes(self) -> int:
        """The most bytes that a step takes in the ring."""
        sizes = []
        for piece in map(self.epoch.pieces.__getitem__, sorted(self.held)):
            rows = piece.shape[0] if piece.shape else 0
            item_bytes = dtype(self.epoch.tensors[piece.tensor].dtype).item_bytes
            sizes.append(prod(piece.shape) * item_bytes + 4 * rows)
        return extent(sizes)
