"""Tensors of a state dict as this process holds them: whole, or a part that a layout describes."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

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
from ucpformat.model.dtype import dtype, dtype_of
from ucpformat.storage.host_memory import array_view
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "LocalTensor",
    "TensorLayout",
    "copy_into",
    "destination_of",
    "elements_of",
    "is_tensor",
    "local_map_at",
    "local_tensor",
    "own_memory",
    "same_memory",
    "tensor_dtype",
    "to_torch",
]

_META: Final = (
    "a tensor on the meta device has no elements; give it memory first, a module by to_empty(device='cpu'), "
    "and before a save the values as well"
)


def is_tensor(obj: object) -> bool:
    """Return whether ``obj`` is a numpy array (not a scalar) or a torch tensor."""
    torch = sys.modules.get("torch")
    return isinstance(obj, np.ndarray) or (torch is not None and isinstance(obj, torch.Tensor))


def tensor_dtype(tensor: Any, *, at: str) -> str:
    """Name of the data type of a tensor in this format (SPEC 11.2).

    Raises:
        UnsupportedError: ``UCP-E-DTYPE`` for types without one.
        MismatchError: ``UCP-E-MISMATCH`` for a tensor that is not dense memory of one process.
    """
    if isinstance(tensor, np.ndarray):
        if isinstance(tensor, np.ma.MaskedArray):
            raise error("UCP-E-MISMATCH", "a masked array is two tensors; give data and mask apart", at=at)
        return dtype_of(tensor.dtype, at=at).name
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided or tensor.is_nested:
        what = "a nested" if tensor.is_nested else f"a {str(tensor.layout).removeprefix('torch.')}"
        remedy = "unbind()" if tensor.is_nested else "to_dense(), or its indices and values"
        raise error("UCP-E-MISMATCH", f"{what} tensor has no dense memory; give {remedy}", at=at)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise error(
            "UCP-E-MISMATCH",
            f"a {type(tensor).__name__} is not a dense tensor of one process; gather it first (full_tensor())",
            at=at,
        )
    if tensor.device.type == "meta":
        raise error("UCP-E-MISMATCH", _META, at=at)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TORCH_DTYPES:
        raise error("UCP-E-DTYPE", f"{tensor.dtype} has no data type in this format", at=at)
    return name


def _require_host(tensor: Any, at: str) -> None:
    if not isinstance(tensor, np.ndarray) and tensor.device.type != "cpu":
        raise error("UCP-E-MISMATCH", f"the tensor lies on {tensor.device}; move it to the CPU first", at=at)


def elements_of(tensor: Any, *, at: str) -> NDArray[np.generic]:
    """Return the elements of a tensor as a numpy array of the format's type, a view wherever memory holds them so.

    Raises as `tensor_dtype`, and ``UCP-E-MISMATCH`` for a tensor on a device.
    """
    kind = dtype(tensor_dtype(tensor, at=at))
    _require_host(tensor, at)
    if isinstance(tensor, np.ndarray):
        return np.asarray(tensor).astype(kind.numpy, copy=False)
    return array_view(tensor.detach().resolve_conj().resolve_neg(), kind, at=at)


def destination_of(tensor: Any, *, at: str) -> NDArray[np.generic]:
    """Return a numpy view of a tensor's memory, to be written to.

    Raises as `elements_of`, and ``UCP-E-MISMATCH`` for memory that cannot take the elements as they are.
    """
    kind = dtype(tensor_dtype(tensor, at=at))
    _require_host(tensor, at)
    if not isinstance(tensor, np.ndarray) and (tensor.is_conj() or tensor.is_neg()):
        raise error("UCP-E-MISMATCH", "the tensor is a conjugate or negative view of its memory", at=at)
    view = array_view(tensor, kind, at=at)
    if view.size and any(
        step == 0 and extent > 1 for step, extent in zip(view.strides, view.shape, strict=True)
    ):
        raise error("UCP-E-MISMATCH", "several elements share one place in memory; give a clone()", at=at)
    if view.dtype != kind.numpy:
        raise error(
            "UCP-E-MISMATCH", f"the array has the byte order of {view.dtype}, not this machine's", at=at
        )
    return view


def same_memory(tensor: Any) -> tuple[object, ...] | None:
    """Return a key that dense tensors share when they are the same elements of the same memory.

    None for a numpy array without elements. A torch tensor without, as a rank may have of what others hold, has a
    storage all the same.
    """
    if isinstance(tensor, np.ndarray):
        if tensor.size == 0:
            return None
        return (tensor.__array_interface__["data"][0], tensor.dtype, tensor.shape, tensor.strides)
    storage = tensor.untyped_storage()._cdata
    return (storage, tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())


def to_torch(array: NDArray[np.generic], name: str) -> Any:
    """Return a torch tensor that shares the memory of a fresh, contiguous array of the data type ``name``.

    Raises:
        UnsupportedError: ``UCP-E-DTYPE`` for types that torch lacks.
    """
    import torch

    kind = getattr(torch, name, None) if name in TORCH_DTYPES else None
    if kind is None:
        raise error("UCP-E-DTYPE", f"torch has no data type {name}; load numpy arrays instead")
    if array.size == 0:
        return torch.empty(array.shape, dtype=kind)
    return torch.from_numpy(array.reshape(-1).view(np.uint8)).view(kind).reshape(array.shape)


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
        """Return the local elements in host memory: a view where they lie there, else a copy."""
        return elements_of(self.local if self.on_host else self.local.detach().to("cpu"), at="")

    def local_map(self, rank: int) -> LocalMap | None:
        """Return where ``rank`` has which boxes of the logical shape; None where it has nothing."""
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
        """Return a key that tensors share when they are the same elements of the same memory, held alike."""
        if 0 in self.shape:
            return None
        where = same_memory(self.local)
        return None if where is None else (*where, self.shape, self.layout, self.place)


def local_tensor(tensor: Any, *, rank: int, held: TensorLayout | None = None, at: str) -> LocalTensor | None:
    """Return what this process holds of a leaf of a state dict, or None where that is nothing.

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
    """Return where ``rank`` has which boxes of a tensor of ``shape``; None where it has nothing."""
    coordinate = layout.mesh.find(rank)
    if coordinate is None:
        return None
    lowering = lower(layout, shape, place=place)
    found = lowering.at(coordinate)
    return None if found is None else LocalMap(found.shape, seen_in(found.pieces, lowering.view, shape))


def own_memory(tensor: LocalTensor, kind: str, *, at: str) -> NDArray[np.generic] | None:
    """Return the tensor's own memory, where elements of the type ``kind`` can be written to it as they are, densely."""
    if not tensor.on_host or tensor.dtype != kind:
        return None
    memory = destination_of(tensor.local, at=at)
    return memory if memory.flags.c_contiguous else None


def copy_into(local: Any, array: NDArray[np.generic], kind: str) -> None:
    """Copy an array of the type ``kind`` into a numpy array or a torch tensor of its shape, on any device."""
    if isinstance(local, np.ndarray):
        local[...] = array.astype(local.dtype, copy=False)
        return
    import torch

    with torch.no_grad():
        local.copy_(to_torch(array, kind))
