"""DTensors as layouts (SPEC appendix A): placements in the order of mesh dims.

Source: torch/distributed/tensor/placement_types.py and torch/distributed/device_mesh.py of PyTorch 2.13.
"""

from __future__ import annotations

from typing import Any

from ucpformat.errors import error
from ucpformat.geometry import DTensorPartial, DTensorShard, Layout, Mesh, MeshAxis, dtensor_steps

__all__ = ["layout_of"]

_REDUCTIONS = {"sum": "sum", "avg": "mean", "max": "max"}


def layout_of(tensor: Any) -> Layout:
    """The layout of a DTensor over its own mesh; axes have the mesh's names, or ``dim0``, ``dim1``, ...

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for a placement that has no equivalent.
    """
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or tuple(f"dim{place}" for place in range(mesh.ndim))
    axes = tuple(MeshAxis(name, size) for name, size in zip(names, mesh.shape, strict=True))
    ranks = tuple(mesh.mesh.flatten().tolist())
    placements = [
        found
        for name, placement in zip(names, tensor.placements, strict=True)
        if (found := _placement(name, placement)) is not None
    ]
    whole = Mesh(axes, None if ranks == tuple(range(len(ranks))) else ranks)
    return Layout(whole, dtensor_steps(placements, tensor.ndim))


def _placement(axis: str, placement: Any) -> DTensorShard | DTensorPartial | None:
    if placement.is_replicate():
        return None
    if placement.is_partial():
        reduce = _REDUCTIONS.get(placement.reduce_op)
        if reduce is not None:
            return DTensorPartial(axis, reduce)  # type: ignore[arg-type]
    elif hasattr(placement, "dim"):
        # `_StridedShard` is no subclass of `Shard` in every release.
        return DTensorShard(axis, placement.dim, getattr(placement, "split_factor", 1))
    raise error("UCP-E-LAYOUT", f"a placement {placement!r} has no layout; redistribute the tensor first")
