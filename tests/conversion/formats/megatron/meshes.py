"""Megatron's ranks as meshes.

Megatron's default order ``tp-cp-ep-dp-pp`` lets tensor-parallel ranks be neighbours (parallel_state.py,
`RankGenerator`). Experts have a decomposition of the same ranks of their own, without context parallelism.
"""

from __future__ import annotations

from ucpformat.geometry import Mesh, MeshAxis

__all__ = ["dense_mesh", "expert_mesh"]


def dense_mesh(*, tp: int = 1, cp: int = 1, dp: int = 1, pp: int = 1) -> Mesh:
    """Return the mesh of everything but experts: axes ``pp``, ``dp``, ``cp``, ``tp``, the last one fastest."""
    return Mesh((MeshAxis("pp", pp), MeshAxis("dp", dp), MeshAxis("cp", cp), MeshAxis("tp", tp)))


def expert_mesh(*, etp: int = 1, ep: int = 1, edp: int = 1, pp: int = 1) -> Mesh:
    """Return the mesh of expert weights: axes ``pp``, ``edp``, ``ep``, ``etp``, the last one fastest.

    ``etp`` is Megatron's ``expert_tensor_parallel_size``, ``edp`` what is left of the ranks of a stage.
    """
    return Mesh((MeshAxis("pp", pp), MeshAxis("edp", edp), MeshAxis("ep", ep), MeshAxis("etp", etp)))
