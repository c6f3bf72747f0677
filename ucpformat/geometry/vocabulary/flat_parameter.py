"""FSDP1's flat parameters and HSDP as steps (SPEC appendix A.3).

Source: torch/distributed/fsdp/_flat_param.py of PyTorch 2.13, `FlatParamHandle`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.geometry.buffer import BufferPlace
from ucpformat.geometry.group import BufferMember, buffer_places
from ucpformat.geometry.layout import Layout
from ucpformat.geometry.mesh import Mesh
from ucpformat.geometry.steps import Concat, Flatten, Shard, Step

__all__ = ["ALIGNED_BYTES", "flat_parameter_places", "flat_parameter_steps"]

ALIGNED_BYTES = 16
"""Where ``use_orig_params`` is set, every parameter begins at a multiple of this many bytes."""


def flat_parameter_steps(group: str, axis: str) -> tuple[Step, ...]:
    """Return the steps of a parameter inside the flat parameter ``group``, which ``axis`` splits.

    With HSDP the mesh has another axis, of replicas, which no step names.
    """
    return (Flatten(), Concat(group), Shard(axis, 0, "even"))


def flat_parameter_places(
    mesh: Mesh, group: str, axis: str, shapes: Sequence[tuple[int, ...]], *, aligned_bytes: int, itemsize: int
) -> tuple[BufferPlace, ...]:
    """Return the places of parameters of ``shapes`` in the flat parameter ``group``, which ``axis`` splits.

    ``aligned_bytes`` is `ALIGNED_BYTES` with ``use_orig_params``, else 0; ``itemsize`` is in bytes, that of the
    data type in which the forward pass computes. Every rank's part is as long: the end is padded.

    Raises UCP-E-LAYOUT where the mesh has no such axis.
    """
    layout = Layout(mesh, flat_parameter_steps(group, axis))
    sharded = next(each.size for each in mesh.axes if each.name == axis)
    return buffer_places(
        [BufferMember(layout, shape) for shape in shapes],
        align=max(1, aligned_bytes // itemsize),
        multiple=sharded,
    )
