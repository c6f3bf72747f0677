"""How a `DTensor` lies over the ranks of a job, told from process to process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from ucpformat.errors import error

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["Sharding"]


class Sharding(NamedTuple):
    """A mesh by its ranks and names, a placement for each of its dims, and the whole tensor's shape and strides.

    A placement is the name of a class of torch's, a dim and a split factor, or None where it has none.
    """

    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    names: tuple[str, ...] | None
    placements: tuple[tuple[str, int | None, int | None], ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Any, *, at: str) -> Self | None:
        """Return that of a `DTensor`, None for a plain tensor.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` for a placement that a replica does not have.
        """
        if not hasattr(tensor, "device_mesh"):
            return None
        placements = []
        for one in tensor.placements:
            kind = type(one).__name__
            if kind not in ("Replicate", "Shard", "_StridedShard"):
                message = f"a replica holds tensors that are sharded or replicated, not {kind}"
                raise error("UCP-E-MISMATCH", f"{message}; log without a replica", at=at)
            placements.append((kind, getattr(one, "dim", None), getattr(one, "split_factor", None)))
        mesh = tensor.device_mesh
        names = mesh.mesh_dim_names
        return cls(
            tuple(mesh.mesh.shape),
            tuple(mesh.mesh.flatten().tolist()),
            None if names is None else tuple(names),
            tuple(placements),
            tuple(tensor.shape),
            tuple(tensor.stride()),
        )

    def to_json(self) -> list[JsonValue]:
        """Return what `from_json` reads."""
        return [
            list(self.sizes),
            list(self.ranks),
            None if self.names is None else list(self.names),
            [list(one) for one in self.placements],
            list(self.shape),
            list(self.strides),
        ]

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """Read what a process of this library, and of the same user, has sent."""
        if value is None:
            return None
        sizes, ranks, names, placements, shape, strides = value
        return cls(
            tuple(sizes),
            tuple(ranks),
            None if names is None else tuple(names),
            tuple((kind, dim, factor) for kind, dim, factor in placements),
            tuple(shape),
            tuple(strides),
        )

    def spread(self, local: torch.Tensor) -> Any:
        """Return what this rank holds of a tensor as a `DTensor`, in a process whose default group has all ranks."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            local,
            _mesh(self.sizes, self.ranks, self.names),
            [_placement(*one) for one in self.placements],
            run_check=False,
            shape=torch.Size(self.shape),
            stride=self.strides,
        )


@cache
def _mesh(sizes: tuple[int, ...], ranks: tuple[int, ...], names: tuple[str, ...] | None) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    # Optimizers compute element by element: no group of a dim's ranks is ever needed.
    return DeviceMesh("cpu", torch.tensor(ranks).reshape(sizes), mesh_dim_names=names, _init_backend=False)


def _placement(kind: str, dim: int | None, factor: int | None) -> Any:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    if kind == "Replicate" or dim is None:
        return Replicate()
    return Shard(dim) if kind == "Shard" else _StridedShard(dim, split_factor=factor or 1)
