"""Tensors of a state dict as this process holds them: whole, or a part that a layout describes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import (
    Box,
    BufferPlace,
    Concat,
    Layout,
    LocalMap,
    Piece,
    Strided,
    lower,
    row_major_strides,
    seen_in,
)
from ucpformat.state_dict.tensors.values import elements_of, same_memory, tensor_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LocalTensor", "TensorLayout", "local_map_at", "local_tensor"]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """How the ranks of a mesh hold one tensor that does not say so itself: ZeRO's flat buffers, Megatron's shards.

    Attributes:
        layout: how the ranks of a mesh hold the tensor; the mesh names the ranks of the job.
        shape: that of the whole tensor, in elements.
        place: where in the buffer the tensor lies, for a layout that has a `Concat`: the tensor in the state is then
            the whole buffer of this rank, which others may share.

    >>> mesh = ucp.Mesh((ucp.MeshAxis("tp", 1),))
    >>> rows = ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("tp", 0, "even"),)), shape=(4, 2))
    >>> report = ucp.save("run.ucp", {"w": np.ones((4, 2))}, layouts={"w": rows})
    """

    layout: Layout
    shape: tuple[int, ...]
    place: BufferPlace | None = None


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """One tensor: data type name, logical shape, how ranks hold it, and what this rank has of it.

    ``local`` is a numpy array or a plain torch tensor on any device; it has the shape that the layout says.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None
    place: BufferPlace | None
    local: Any

    def array(self) -> NDArray[np.generic]:
        """The local elements in host memory: a view where they lie there, else a copy."""
        return elements_of(self.local if self.on_host else self.local.detach().to("cpu"), at="")

    def local_map(self, rank: int) -> LocalMap | None:
        """Where ``rank`` has which boxes of the logical shape; None where it has nothing."""
        if self.layout is None:
            whole = Piece(Box.whole(self.shape), Strided(0, row_major_strides(self.shape)))
            return LocalMap(self.shape, (whole,))
        return local_map_at(self.layout, self.shape, self.place, rank)

    @property
    def on_host(self) -> bool:
        """Whether the local elements lie in host memory."""
        return isinstance(self.local, np.ndarray) or self.local.device.type == "cpu"

    @property
    def in_buffer(self) -> bool:
        """Whether the local tensor is a buffer, which may hold other tensors as well."""
        return self.layout is not None and any(isinstance(step, Concat) for step in self.layout.steps)

    def memory(self) -> tuple[object, ...] | None:
        """A key that tensors share when they are the same elements of the same memory, held alike."""
        if 0 in self.shape:
            return None
        where = self.storage()
        return None if where is None else (*where, self.shape, self.layout, self.place)

    def storage(self) -> tuple[object, ...] | None:
        """A key that is equal for views of the same elements of the same memory; None where numpy has no elements."""
        if isinstance(self.local, np.ndarray):
            return same_memory(self.local)
        # A rank may have no element of a tensor that others have: its storage is an object all the same.
        local = self.local
        storage = local.untyped_storage()._cdata
        return (storage, local.storage_offset(), local.dtype, tuple(local.shape), local.stride())


def local_tensor(tensor: Any, *, rank: int, held: TensorLayout | None = None, at: str) -> LocalTensor | None:
    """What this process holds of a leaf of a state dict, or None where that is nothing.

    ``held`` says how, for a tensor that does not.

    Raises:
        UnsupportedError: ``UCP-E-DTYPE`` for types that the format lacks.
        MismatchError: ``UCP-E-MISMATCH`` for tensors that are not dense, or not of the shape that the layout says.
    """
    if hasattr(tensor, "local_shards"):
        from ucpformat.state_dict.tensors.sharded_tensors import held_shard

        tensor, held = held_shard(tensor, at=at)
        if tensor is None:
            return None
    if held is not None:
        found = LocalTensor(tensor_dtype(tensor, at=at), held.shape, held.layout, held.place, tensor)
    elif hasattr(tensor, "device_mesh"):
        from ucpformat.state_dict.tensors.torch_layouts import layout_of

        local = tensor.to_local().detach()
        found = LocalTensor(tensor_dtype(local, at=at), tuple(tensor.shape), layout_of(tensor), None, local)
    else:
        return LocalTensor(tensor_dtype(tensor, at=at), tuple(tensor.shape), None, None, tensor)
    local_map = found.local_map(rank)
    # A rank without elements may have them in any shape: FSDP2 over uneven tensor parallelism makes (0, 0) of (1, 0).
    if (
        local_map is not None
        and local_map.shape != tuple(found.local.shape)
        and (local_map.size or math.prod(found.local.shape))
    ):
        raise error(
            "UCP-E-MISMATCH",
            f"the local tensor has shape {list(found.local.shape)}, its layout says {list(local_map.shape)}",
            at=at,
        )
    return None if local_map is None else found


@lru_cache(maxsize=4096)
def local_map_at(
    layout: Layout, shape: tuple[int, ...], place: BufferPlace | None, rank: int
) -> LocalMap | None:
    """Where ``rank`` has which boxes of a tensor of ``shape``; None where it has nothing."""
    coordinate = layout.mesh.find(rank)
    if coordinate is None:
        return None
    lowering = lower(layout, shape, place=place)
    found = lowering.at(coordinate)
    return None if found is None else LocalMap(found.shape, seen_in(found.pieces, lowering.view, shape))
