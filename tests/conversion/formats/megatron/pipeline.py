"""Which layers a pipeline stage has.

From transformer/transformer_block.py, `get_num_layers_to_build`, and transformer/transformer_layer.py,
`get_transformer_layer_offset`.

A stage has one run of layers per virtual stage, called chunk here; chunk ``v`` of all stages comes before chunk
``v + 1`` of any.
"""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.errors import error
from ucpformat.geometry import Blocks, Join, Shard, Step

__all__ = ["chunk_sizes", "layer_steps", "stage_layers"]

Sizes = tuple[tuple[int, ...], ...]
"""How many layers each chunk (outer) has on each stage (inner)."""


def chunk_sizes(
    layers: int,
    stages: int,
    *,
    chunks: int = 1,
    first: int | None = None,
    last: int | None = None,
    embedding_counts: bool = False,
    loss_counts: bool = False,
) -> Sizes:
    """Return how many layers every chunk has on every stage, for Megatron's settings.

    ``first`` and ``last`` are ``num_layers_in_first_pipeline_stage`` and ``..._last_...``; ``embedding_counts`` and
    ``loss_counts`` are ``account_for_embedding_in_pipeline_split`` and ``account_for_loss_...``, which make the
    first chunk of the first stage, and the last one of the last, a layer shorter.

    Raises UCP-E-LAYOUT where the layers do not go evenly to what is left of the stages, as Megatron does.
    """
    if (first is not None or last is not None) and (embedding_counts or loss_counts):
        raise error(
            "UCP-E-LAYOUT", "an uneven first or last stage does not go with counted embeddings or loss"
        )
    if stages == 1:
        return ((layers,),)
    per_stage: list[int | None] = [None] * stages
    if first is not None:
        per_stage[0] = first
    if last is not None:
        per_stage[-1] = last
    given = sum(count for count in per_stage if count is not None)
    others = per_stage.count(None)
    left = layers + embedding_counts + loss_counts - given
    if left < 0 or (left % others if others else left):
        raise error("UCP-E-LAYOUT", f"{left} layers do not go evenly to {others} stages")
    counts = [left // others if count is None else count for count in per_stage]
    if any(count % chunks for count in counts):
        raise error("UCP-E-LAYOUT", f"stages of {counts} layers do not make {chunks} chunks each")
    sizes = [[count // chunks for count in counts] for _ in range(chunks)]
    sizes[0][0] -= embedding_counts
    sizes[-1][-1] -= loss_counts
    if sizes[0][0] < 0 or sizes[-1][-1] < 0:
        raise error("UCP-E-LAYOUT", "the first or the last stage has no layer to give up")
    return tuple(map(tuple, sizes))


def stage_layers(sizes: Sizes, stage: int) -> tuple[range, ...]:
    """Return the layers of a stage, chunk by chunk, counted from 0 over the whole model."""
    ranges = []
    begin = 0
    for chunk in sizes:
        offset = begin + sum(chunk[:stage])
        ranges.append(range(offset, offset + chunk[stage]))
        begin += sum(chunk)
    return tuple(ranges)


def layer_steps(sizes: Sequence[Sequence[int]], axis: str = "pp") -> tuple[Step, ...]:
    """Return the steps of a tensor with all layers stacked along dim 0: a stage keeps those of its chunks in order."""
    widths = tuple(sum(chunk) for chunk in sizes)
    own = tuple((Shard(axis, 0, tuple(chunk)),) for chunk in sizes)
    return (Blocks(0, widths, own), Join(0))
