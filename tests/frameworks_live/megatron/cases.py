"""The checkpoints that megatron-core writes for the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CASES", "CLASSIC", "Case"]


@dataclass(frozen=True)
class Case:
    """``sharding`` is the distributed optimizer's format, None for a plain optimizer; the rest are degrees.

    ``forward`` says that the gradients are real. ``chunks`` is the degree of a virtual pipeline, ``first_stage`` how
    many layers the first stage has where stages differ. It is resumed on ``resumed`` ranks: tensor, pipeline, expert
    degree, and what is left of the ranks is data-parallel; with ``resumed_chunks`` and ``resumed_first_stage``.
    """

    world: int
    tp: int = 1
    pp: int = 1
    ep: int = 1
    experts: int | None = None
    sharding: str | None = "fully_reshardable"
    forward: bool = False
    by_layer: bool = False
    bf16: bool = False
    tied: bool = False
    bucket_size: int | None = None
    chunks: int | None = None
    first_stage: int | None = None
    resumed: tuple[int, int, int, int] = (1, 1, 1, 1)
    resumed_chunks: int | None = None
    resumed_first_stage: int | None = None


CASES: Final = {
    "tp2": Case(2, tp=2, forward=True, resumed=(2, 1, 1, 1)),
    "dp2": Case(2, forward=True, resumed=(2, 2, 1, 1)),
    "pp2-plain": Case(2, pp=2, sharding=None, resumed=(2, 2, 1, 1)),
    "ep2": Case(2, ep=2, experts=4, resumed=(4, 1, 1, 4)),
    "dp2-buckets": Case(2, sharding="dp_reshardable", forward=True, resumed=(2, 2, 1, 1)),
    "tp2-gathered": Case(2, tp=2, sharding="dp_zero_gather_scatter", forward=True),
    "pp2-dp2-buckets": Case(
        4, pp=2, sharding="dp_reshardable", bf16=True, bucket_size=1000, first_stage=1, resumed=(2, 2, 1, 1)
    ),
    "ep2-buckets": Case(2, ep=2, experts=4, sharding="dp_reshardable", resumed=(4, 2, 1, 2)),
    "virtual-buckets": Case(2, pp=2, chunks=2, sharding="dp_reshardable", resumed=(2, 1, 2, 1)),
    "tp2-virtual": Case(4, tp=2, pp=2, chunks=2, resumed=(2, 1, 2, 1), resumed_first_stage=3),
    "tp2-ep2-pp2": Case(4, tp=2, pp=2, ep=2, experts=4, resumed=(2, 1, 1, 2)),
    "uneven": Case(2, pp=2, first_stage=1, resumed=(2, 1, 2, 1), resumed_chunks=2),
    "dp2-bf16": Case(2, bf16=True, resumed=(2, 2, 1, 1)),
    "tp2-pp2": Case(4, tp=2, pp=2, by_layer=True, resumed=(2, 1, 2, 1)),
}

CLASSIC: Final = {
    "tp2-pp2-plain": Case(4, tp=2, pp=2, sharding=None),
    "tp2-dp2": Case(4, tp=2, sharding="fully_reshardable", bf16=True),
    "pp2-dp2-tied": Case(4, pp=2, sharding="fully_reshardable", tied=True, bucket_size=1000),
    "tp2-plain-bf16": Case(4, tp=2, sharding=None, bf16=True),
    "pp2-ep2": Case(4, pp=2, ep=2, experts=4),
}
"""What is saved as Megatron-LM does without ``dist_checkpointing``."""
