"""Live torch tensors as layouts (SPEC appendix A.2): DTensors, and tensors that list their boxes.

Sources: torch/distributed/tensor/placement_types.py, _dtensor_spec.py, _shards_wrapper.py and
torch/distributed/device_mesh.py of PyTorch 2.13; torch/distributed/checkpoint/protocol.py of PyTorch 2.15.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from ucpformat.errors import error
from ucpformat.geometry import (
    DTensorPartial,
    DTensorShard,
    Layout,
    LocalBox,
    LocalMap,
    Mesh,
    MeshAxis,
    Reduce,
    dtensor_steps,
    local_map_of,
    ordered_dtensor_steps,
)

__all__ = ["boxes_of", "layout_of", "mesh_of"]

_meshes: Final[WeakKeyDictionary[Any, Mesh]] = WeakKeyDictionary()
_REDUCTIONS: Final[dict[str, Reduce]] = {"sum": "sum", "avg": "mean", "max": "max"}


def mesh_of(device_mesh: Any) -> Mesh:
    """Return the mesh of a ``DeviceMesh``; axes have its names, or ``dim0``, ``dim1``, ...

    A model has few of those and thousands of tensors over them.
    """
    found = _meshes.get(device_mesh)
    if found is None:
        found = _meshes[device_mesh] = _mesh_of(device_mesh)
    return found


def _mesh_of(device_mesh: Any) -> Mesh:
    names = device_mesh.mesh_dim_names or tuple(f"dim{place}" for place in range(device_mesh.ndim))
    axes = tuple(MeshAxis(name, size) for name, size in zip(names, device_mesh.shape, strict=True))
    ranks = tuple(device_mesh.mesh.flatten().tolist())
    return Mesh(axes, None if ranks == tuple(range(len(ranks))) else ranks)


def layout_of(tensor: Any) -> Layout:
    """Return the layout of a DTensor over its own mesh, see `mesh_of`.

    A spec says in which order the dims were split, by itself or by the split factors of ``_StridedShard``: that is
    how FSDP2 over tensor parallelism holds a tensor and how ``full_tensor`` gathers it. In extents that do not
    divide, ``compute_local_shape_and_global_offset``, by which DCP writes, says something else.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for a placement that has no equivalent.
    """
    mesh = mesh_of(tensor.device_mesh)
    spec = tensor._spec
    by_name = {
        axis.name: found
        for axis, placement in zip(mesh.axes, tensor.placements, strict=True)
        if (found := _placement(axis.name, placement)) is not None
    }
    placements = list(by_name.values())
    # Older releases say nothing of an order but by split factors.
    if getattr(spec, "use_strided_shard_as_shard_order", True):
        sizes = {axis.name: axis.size for axis in mesh.axes}
        return Layout(mesh, ordered_dtensor_steps(placements, sizes, tensor.ndim))
    ordered = [mesh.axes[axis].name for entry in spec.shard_order for axis in entry.mesh_dims]
    shards = [by_name[name] for name in ordered]
    partial = [placement for placement in placements if isinstance(placement, DTensorPartial)]
    return Layout(mesh, dtensor_steps([*partial, *shards], tensor.ndim))


def _placement(axis: str, placement: Any) -> DTensorShard | DTensorPartial | None:
    # Subclasses of Partial reduce by more than their name says: a mask, a norm.
    kind = type(placement).__name__
    if kind == "Replicate":
        return None
    if kind == "Partial" and placement.reduce_op in _REDUCTIONS:
        return DTensorPartial(axis, _REDUCTIONS[placement.reduce_op])
    if kind in ("Shard", "_StridedShard"):
        return DTensorShard(axis, placement.dim, int(getattr(placement, "split_factor", 1)))
    raise error("UCP-E-LAYOUT", f"a placement {placement!r} has no layout; redistribute the tensor first")


def boxes_of(tensor: Any) -> tuple[tuple[int, ...], LocalMap]:
    """Return the shape of the logical tensor, and which boxes of it a ``CheckpointableTensor`` holds.

    Torch asks nothing but the four attributes of a local tensor; one whose ``local_offsets`` are empty tuples is
    its only box. What no box holds is padding.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for lists that do not go together or a box held twice.
        MismatchError: ``UCP-E-SHAPE`` for a box that leaves either tensor.
    """
    shape = tuple(map(int, tensor.global_shape))
    lists = [
        [tuple(map(int, entry)) for entry in getattr(tensor, name)]
        for name in ("global_offsets", "local_offsets", "local_sizes")
    ]
    if len({len(entries) for entries in lists}) != 1:
        raise error(
            "UCP-E-LAYOUT", "global_offsets, local_offsets and local_sizes have one entry for each box"
        )
    local_shape = tuple(map(int, tensor.shape))
    boxes = [
        LocalBox(first, inside or (0,) * len(local_shape), sizes)
        for first, inside, sizes in zip(*lists, strict=True)
    ]
    return shape, local_map_of(shape, local_shape, boxes)
