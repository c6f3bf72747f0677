"""How whole systems spread their tensors, as steps: JAX, AccPar, tied embeddings, PipeDream (SPEC appendix A.3)."""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.errors import error
from ucpformat.geometry.mesh import Mesh, MeshAxis, RaggedAxis
from ucpformat.geometry.steps import Only, Shard, Step

__all__ = ["named_sharding_steps", "ratio_sizes", "tied_steps", "unequal_stages"]


def named_sharding_steps(spec: Sequence[str | Sequence[str] | None]) -> tuple[Step, ...]:
    """Return the steps of a JAX ``PartitionSpec``: per dim an axis, several from major to minor, or None.

    JAX splits evenly or not at all (``jax.sharding.NamedSharding``), and so does the rule.
    """
    steps: list[Step] = []
    for dim, axes in enumerate(spec):
        names = (axes,) if isinstance(axes, str) else tuple(axes or ())
        steps.extend(Shard(name, dim, "even") for name in names)
    return tuple(steps)


def ratio_sizes(extent: int, ratios: Sequence[int]) -> tuple[int, ...]:
    """Return sizes that sum to ``extent`` in the proportion of ``ratios``, exact zeros for zeros.

    Edges are those of the running sum, rounded down: uneven shards as AccPar computes them for devices of
    unequal speed. Raises UCP-E-LAYOUT unless ratios are integers >= 0 with a sum above 0.
    """
    total = sum(ratios)
    if min(ratios, default=0) < 0 or total <= 0:
        raise error("UCP-E-LAYOUT", f"ratios are integers >= 0, not all 0, and not {tuple(ratios)}")
    edges = [0]
    running = 0
    for ratio in ratios:
        running += ratio
        edges.append(extent * running // total)
    return tuple(edges[place + 1] - edges[place] for place in range(len(ratios)))


def tied_steps(stage_axis: str, stages: Sequence[int]) -> tuple[Step, ...]:
    """Return the step of a parameter that several pipeline stages share: it is one tensor, held by all of them.

    ``stages`` are positions on ``stage_axis``, in any order; the embedding of a language model is on the first and
    the last. What the stages split among their ranks follows as further steps.
    """
    return (Only(stage_axis, tuple(sorted(set(stages)))),)


def unequal_stages(stages: Sequence[Sequence[int]], stage_axis: str = "pp", replica_axis: str = "dp") -> Mesh:
    """Return the mesh of a pipeline whose stages have the ranks listed, each its own number of replicas.

    PipeDream writes them as ``stage_to_rank_map``. A parameter of stage ``s`` is `Only` at ``s``, and the replicas
    of its stage are then its holders. Raises UCP-E-LAYOUT for a stage without ranks, and a rank in two stages.
    """
    widths = tuple(len(ranks) for ranks in stages)
    listed = tuple(rank for ranks in stages for rank in ranks)
    return Mesh((MeshAxis(stage_axis, len(widths)), RaggedAxis(replica_axis, stage_axis, widths)), listed)
