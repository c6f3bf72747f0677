"""FSDP1's flat parameters of the running process as layouts (SPEC appendix A.3).

Source: torch/distributed/fsdp/_flat_param.py of PyTorch 2.13, `FlatParamHandle`.
"""

from __future__ import annotations

from typing import Any

from ucpformat.errors import error
from ucpformat.geometry import (
    ALIGNED_BYTES,
    Layout,
    Mesh,
    MeshAxis,
    flat_parameter_places,
    flat_parameter_steps,
)
from ucpformat.state_dict.tensors.local_tensors import TensorLayout
from ucpformat.state_dict.tensors.torch_layouts import mesh_of

__all__ = ["flat_parameters"]


def flat_parameters(unit: Any, group: str = "flat_param") -> dict[str, TensorLayout]:
    """Return how the ranks hold the parameters of one FSDP1 unit, by their names inside it.

    ``unit`` is a module that ``FullyShardedDataParallel`` wraps; parameters of units inside it are not among them.
    The local tensor of each is the whole ``flat_param`` of this rank, and so are the optimizer's states without
    ``use_orig_params``. ``group`` names the buffer: another for each unit.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for what is not sharded, a hybrid without its device mesh, and parameters that
            an extension (tensor parallelism) made.
    """
    handle = unit._handle
    if handle is None or not handle.uses_sharded_strategy:
        raise error("UCP-E-LAYOUT", "the unit has no sharded flat parameter")
    flat = handle.flat_param
    if any(extension is not None for extension in flat._param_extensions):
        raise error("UCP-E-LAYOUT", "parameters are shards of tensor parallelism: use FSDP2 (fully_shard)")
    mesh = _mesh(unit)
    axis = mesh.axes[-1].name
    shapes = [tuple(shape) for shape in flat._shapes]
    places = flat_parameter_places(
        mesh,
        group,
        axis,
        shapes,
        aligned_bytes=ALIGNED_BYTES if handle._use_orig_params else 0,
        itemsize=handle._fwd_bwd_param_dtype.itemsize,
    )
    layout = Layout(mesh, flat_parameter_steps(group, axis))
    return {
        name: TensorLayout(layout, shape, place)
        for name, shape, place in zip(flat._fqns, shapes, places, strict=True)
    }


def _mesh(unit: Any) -> Mesh:
    if unit._device_mesh is not None:
        return mesh_of(unit._device_mesh)
    if getattr(unit, "_inter_node_pg", None) is not None:
        raise error(
            "UCP-E-LAYOUT", "hybrid sharding by two process groups: give FSDP a device_mesh of two dims"
        )
    import torch.distributed as dist

    ranks = tuple(dist.get_process_group_ranks(unit.process_group))
    return Mesh((MeshAxis("fsdp", len(ranks)),), ranks)
