"""The steps of Megatron's parallel layers (tensor_parallel/layers.py, transformer/mlp.py, transformer/moe/experts.py).

Global tensors are as Megatron stores them in ``torch_dist``: ``linear_fc1`` of a gated unit has all gates, then all
ups; experts are stacked along a leading dim; a padded vocabulary is what is stored there, and no part of the atom.
"""

from __future__ import annotations

from ucpformat.errors import error
from ucpformat.geometry import Blocks, Concat, Flatten, Join, Pad, Permute, Shard, Step, sub_parameter_steps

__all__ = [
    "bucket_steps",
    "column_parallel_steps",
    "gated_steps",
    "grouped_expert_steps",
    "row_parallel_steps",
    "sequential_expert_steps",
    "vocabulary_steps",
]


def column_parallel_steps(axis: str = "tp") -> tuple[Step, ...]:
    """Return the steps of a ColumnParallelLinear, weight or bias: outputs, dim 0, are split.

    ``linear_qkv`` is one of them: its rows are those of whole query groups, one after another, see
    `attention.qkv_map`, and split like any rows, even across a group.
    """
    return (Shard(axis, 0, "even"),)


def row_parallel_steps(axis: str = "tp") -> tuple[Step, ...]:
    """Return the steps of the weight of a RowParallelLinear: inputs, dim 1, are split. Its bias is replicated."""
    return (Shard(axis, 1, "even"),)


def vocabulary_steps(divisible_by: int, tp: int, axis: str = "tp") -> tuple[Step, ...]:
    """Return the steps of embedding and output layer: padded to a multiple of ``divisible_by * tp``, then split.

    ``divisible_by`` is ``--make-vocab-size-divisible-by``; the padding is at the end (megatron/training/
    tokenizer/tokenizer.py, `_vocab_size_with_padding`), so that the local extents follow the degree.
    """
    return (Pad(0, multiple=divisible_by * tp), Shard(axis, 0, "even"))


def gated_steps(width: int, axis: str = "tp", dim: int = 0) -> tuple[Step, ...]:
    """Return the steps of the ``linear_fc1`` of a gated unit: gate and up, of ``width`` each, are split alike."""
    return sub_parameter_steps(axis, dim, (width, width))


def sequential_expert_steps(
    steps: tuple[Step, ...], *, experts: int, ep: int, ep_axis: str = "ep"
) -> tuple[Step, ...]:
    """Return the steps of stacked experts, SequentialMLP's and TEGroupedMLP's: experts split, then each of them.

    ``steps`` are those of one expert, over its own axes. Its dims move up by one, since experts are dim 0; the
    local tensors of a rank's experts, one parameter each, are the rows of the result.
    Raises UCP-E-LAYOUT where ``ep`` does not divide ``experts``.
    """
    _divides(experts, ep)
    return (Shard(ep_axis, 0, "even"), *(_moved(step, 1) for step in steps))


def grouped_expert_steps(
    width: int | None, *, experts: int, ep: int, ep_axis: str = "ep", etp_axis: str = "etp"
) -> tuple[Step, ...]:
    """Return the steps of GroupedMLP's ``weight1`` (``width`` of the gate, given) and ``weight2`` (None).

    The logical tensors are those of `sequential_expert_steps`: (experts, 2 * width, hidden) and (experts, hidden,
    width). The memory of GroupedMLP has the last two dims the other way round, and no dim of experts: its
    ``weight1`` of shape (hidden, n) is (local experts, hidden, n / local experts), read as it lies.
    """
    _divides(experts, ep)
    last: tuple[Step, ...]
    if width is None:
        last = (Shard(etp_axis, 1, "even"),)
    else:
        last = (Blocks(2, (width, width)), Shard(etp_axis, 2, "even"), Join(2))
    return (Permute((0, 2, 1)), Shard(ep_axis, 0, "even"), *last)


def bucket_steps(steps: tuple[Step, ...], bucket: str, axis: str = "dp") -> tuple[Step, ...]:
    """Return the steps of an optimizer state: those of its parameter, then flat in its bucket, split over ``axis``."""
    return (*steps, Flatten(), Concat(bucket), Shard(axis, 0, "even"))


def _moved(step: Step, by: int) -> Step:
    match step:
        case Shard():
            return Shard(step.axis, step.dim + by, step.rule)
        case Blocks(steps=None):
            return Blocks(step.dim + by, step.sizes)
        case Join():
            return Join(step.dim + by)
        case _:
            raise error("UCP-E-LAYOUT", f"the steps of an expert split it: {step!r} does not")


def _divides(experts: int, ep: int) -> None:
    if ep < 1 or experts % ep:
        raise error("UCP-E-LAYOUT", f"{experts} experts do not go evenly to {ep} ranks")
