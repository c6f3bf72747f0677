"""torch's ``ShardedTensor``, which FSDP1 puts into its sharded state dicts, as a layout (SPEC appendix A.3).

Source: torch/distributed/_shard/sharded_tensor/metadata.py and torch/distributed/fsdp/_shard_utils.py, PyTorch 2.13.
"""

from __future__ import annotations

from typing import Any

from ucpformat.errors import error
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.state_dict.tensors.local_tensors import TensorLayout

__all__ = ["held_shard"]


def held_shard(tensor: Any, *, at: str) -> tuple[Any, TensorLayout | None]:
    """Return this rank's shard as a plain tensor, or none, and how the ranks hold the whole.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for shards of more than one dim, and for several of one rank.
    """
    metadata = tensor.metadata()
    shape = tuple(map(int, metadata.size))
    shards = sorted(metadata.shards_metadata, key=lambda shard: list(shard.shard_offsets))
    ranks = tuple(shard.placement.rank() for shard in shards)
    cut = [
        dim for dim, extent in enumerate(shape) if any(shard.shard_sizes[dim] != extent for shard in shards)
    ]
    if len(cut) > 1 or len(set(ranks)) != len(ranks):
        raise error(
            "UCP-E-MISMATCH",
            "a ShardedTensor of which ranks hold more than one box along one dim; give DTensors",
            at=at,
        )
    mine = tensor.local_shards()
    if not mine:
        return None, None
    mesh = Mesh((MeshAxis("shard", len(ranks)),), ranks)
    sizes = tuple(int(shard.shard_sizes[cut[0]]) for shard in shards) if cut else ()
    steps = (Shard("shard", cut[0], sizes),) if cut else ()
    return mine[0].tensor, TensorLayout(Layout(mesh, steps), shape)
