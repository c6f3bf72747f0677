"""The patterns of Universal Checkpointing as steps (SPEC appendix A.4).

Names are those of the paper (arXiv 2406.18820, later the ATC 2025 text): unique, replicate, partial, shard along
dims; non-contiguous shards are `sub_parameter_steps` and, of fused experts, `fused_expert_steps`. What they mean
to DeepSpeed is in ``deepspeed/checkpoint/ds_to_universal.py`` (``merge_tp_slices``) and
``deepspeed/checkpoint/universal_checkpoint.py`` (``load_hp_checkpoint_state``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.errors import error
from ucpformat.geometry.steps import Only, Pad, Partial, Rule, Shard, Step, View

__all__ = [
    "averaged_steps",
    "fragment_steps",
    "fused_expert_steps",
    "replicated_steps",
    "unique_steps",
    "vocabulary_steps",
]


def unique_steps(axis: str, position: int) -> tuple[Step, ...]:
    """Return the steps of a parameter that one position of ``axis`` has, such as a pipeline stage."""
    return (Only(axis, (position,)),)


def replicated_steps() -> tuple[Step, ...]:
    """Return the steps of a parameter that all ranks hold alike: none."""
    return ()


def averaged_steps(axes: Sequence[str]) -> tuple[Step, ...]:
    """Return the steps of copies along ``axes`` that were updated apart: their mean is the parameter.

    DeepSpeed adds them up in the data type of the slices (``parameter_to_average_patterns``), this format in the
    accumulator of SPEC 12.2; a job that reads gives every rank the mean.
    """
    return tuple(Partial(axis, "mean") for axis in axes)


def fragment_steps(splits: Sequence[tuple[str, int]], rule: Rule = "even") -> tuple[Step, ...]:
    """Return the steps of a parameter split over axes, each along its dim: the paper's Shard-V, -H and -Hy.

    DeepSpeed concatenates slices in the order of ranks, along dim 1 for
    ``parameter_with_row_parallelism_patterns`` and dim 0 else, and cuts by torch.chunk, after it has checked
    that parts are equal.
    """
    return tuple(Shard(axis, dim, rule) for axis, dim in splits)


def vocabulary_steps(axis: str, multiple: int) -> tuple[Step, ...]:
    """Return the steps of an embedding whose rows are padded to a ``multiple`` and split evenly over ``axis``.

    The padding is in local tensors alone, as ``vocabulary_parameter_patterns`` strips it.
    """
    return (Pad(0, multiple=multiple), Shard(axis, 0, "even"))


def fused_expert_steps(axis: str, experts: int, matrix: tuple[int, int], dim: int) -> tuple[Step, ...]:
    """Return the steps of expert weights stored as ``[experts * rows, columns]``, each split along its own dim.

    ``matrix`` is ``(rows, columns)`` of one expert, ``dim`` is 0 for rows and 1 for columns: DeepSpeed's
    ``sub_param_shape`` ``(experts, (rows,), columns)`` or ``(experts, rows, (columns,))`` with the
    ``partition_dim`` ``dim + 1`` (a number there would be one of equal sub-parameters). The local tensor has
    three dims. Raises UCP-E-LAYOUT for another dim.
    """
    if dim not in (0, 1):
        raise error("UCP-E-LAYOUT", f"the matrix of an expert has dims 0 and 1, not {dim}", at="/dim")
    return (View((experts, *matrix)), Shard(axis, dim + 1, "even"))
