"""The distributed optimizer's buffers.

From distributed/param_and_grad_buffer.py, `_ParamAndGradBuffer`, and optimizer/distrib_optimizer.py,
`_build_model_gbuf_range`.

The local (tensor- and pipeline-parallel) parameters of one data type lie in a buffer, last one first, each begun at
a multiple of 64 elements. The buffer is cut into buckets, and every bucket is split evenly over the data-parallel
ranks, for which it is padded. So a bucket is our `Concat` group, whatever it has to do with communication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ucpformat.geometry import BufferPlace

__all__ = ["Bucket", "BufferParameter", "BufferSlot", "assign_buckets"]

PARAMETER_ALIGNMENT: Final = 64
BUCKET_ALIGNMENT: Final = 128
HIGH_BANDWIDTH_ALIGNMENT: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class BufferParameter:
    """A local parameter: its elements on this rank, and whether it is an embedding shared between stages."""

    numel: int
    is_shared_embedding: bool = False


@dataclass(frozen=True, slots=True)
class BufferSlot:
    """Where a parameter lies: its bucket, and its place in that."""

    bucket: int
    place: BufferPlace


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket: first element in the buffer, length with padding, and without what pads its end."""

    start: int
    length: int
    unpadded: int


def assign_buckets(
    parameters: Sequence[BufferParameter],
    *,
    dp: int,
    bucket_size: int | None = None,
    high_bandwidth: bool = False,
) -> tuple[tuple[BufferSlot, ...], tuple[Bucket, ...]]:
    """Return the slot of every parameter, in the order of the model, and the buckets, in that of the buffer.

    ``dp`` is the size of the group over which the optimizer shards, context parallelism included, one instance;
    ``bucket_size`` closes a bucket that has so many elements, None keeps one; ``high_bandwidth`` is
    ``pad_buckets_for_high_nccl_busbw``. Valid with ``use_distributed_optimizer`` alone: without it nothing is
    padded or split. Parameters of one buffer have one data type.
    """
    alignment = math.lcm(dp, BUCKET_ALIGNMENT, HIGH_BANDWIDTH_ALIGNMENT if high_bandwidth else 1)
    starts: list[int] = []
    numbers: list[int] = []
    buckets: list[Bucket] = []
    begin = end = 0
    is_empty = True

    def close(stop: int) -> int:
        nonlocal begin, is_empty
        length = _up(stop, alignment) - begin
        buckets.append(Bucket(begin, length, stop - begin))
        begin += length
        is_empty = True
        return begin

    for parameter in reversed(parameters):
        start = _up(end, PARAMETER_ALIGNMENT)
        if parameter.is_shared_embedding and not is_empty:
            start = close(start)
        end = start + parameter.numel
        starts.append(start)
        numbers.append(len(buckets))
        is_empty = False
        if parameter.is_shared_embedding or (bucket_size is not None and end - begin >= bucket_size):
            end = close(end)
    if not is_empty:
        close(end)
    slots = [
        BufferSlot(number, BufferPlace((start - buckets[number].start,), (buckets[number].length,)))
        for start, number in zip(starts, numbers, strict=True)
    ]
    return tuple(reversed(slots)), tuple(buckets)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
