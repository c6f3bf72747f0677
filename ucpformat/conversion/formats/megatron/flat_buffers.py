"""Which parameter lies where in the flat buffers of distributed optimizers, found from what a checkpoint does say.

``dp_reshardable`` and ``dp_zero_gather_scatter`` store the buffers of each model-parallel rank as they are
(megatron-core 0.16.1, optimizer/distrib_optimizer.py) and name no parameter in them. What is known: the shards of the
model's tensors, the length of every bucket, and the rule by which a buffer is filled (`buffers`), last parameter
first. Degrees, the layers of each stage and the order of modules (`rank_parameters`) follow where they give all lengths
exactly.

All here is integers; whether the parameters found are the right ones is for `flat_states` to see in their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ucpformat.conversion.formats.megatron.buffers import PARAMETER_ALIGNMENT, BufferParameter, assign_buckets
from ucpformat.conversion.formats.megatron.parameter_groups import is_expert_name
from ucpformat.conversion.formats.megatron.rank_parameters import (
    LocalParameter,
    Model,
    ModelTensor,
    Order,
    RankParameters,
)

__all__ = ["Buffer", "Chunks", "Placed", "place", "resolve"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """The lengths of a buffer's buckets in elements, what pads their ends left out.

    Where there is one length, of all buckets one after another, ``sizes`` are those that buckets may have had.
    """

    lengths: tuple[int, ...]
    sizes: tuple[int | None, ...] = ()


Chunks = Sequence[Mapping[str, Buffer]]
"""The buffers of one model-parallel rank: for each chunk of a virtual pipeline, by the type of parameters."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A parameter in the buffers: of which optimizer, rank, chunk and bucket, and its first element there."""

    parameter: LocalParameter
    chained: int
    rank: int
    chunk: int
    bucket: int
    offset: int


def place(parameters: Sequence[LocalParameter], lengths: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return each parameter's bucket and first element there, in the model's order; None unless lengths are exact."""
    offsets: list[tuple[int, int]] = []
    bucket = end = 0
    if not parameters or not lengths:
        return None if parameters or lengths else []
    for parameter in reversed(parameters):
        numel, start = parameter.numel, _up(end)
        if start + numel > lengths[bucket]:
            bucket += 1
            if not _is_full(end, lengths[bucket - 1]) or bucket == len(lengths) or numel > lengths[bucket]:
                return None
            start = 0
        offsets.append((bucket, start))
        end = start + numel
    if bucket + 1 != len(lengths) or not _is_full(end, lengths[bucket]):
        return None
    return offsets[::-1]


def _place_joined(parameters: Sequence[LocalParameter], buffer: Buffer) -> list[tuple[int, int]] | None:
    """Do as `place`, of buckets that lie one after another as one."""
    for size in buffer.sizes:
        slots, buckets = assign_buckets(
            [BufferParameter(parameter.numel) for parameter in parameters], dp=1, bucket_size=size
        )
        before = [0]
        for bucket in buckets:
            before.append(before[-1] + bucket.unpadded)
        if buffer.lengths == (before[-1],):
            return [(0, before[slot.bucket] + slot.place.offsets[0]) for slot in slots]
    return None


def _up(value: int) -> int:
    return -(-value // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT


def _is_full(end: int, length: int) -> bool:
    """Return whether a bucket ends here. Before a shared embedding its alignment counts as part of the bucket."""
    return end > 0 and length in (end, _up(end))


def resolve(
    tensors: Sequence[ModelTensor],
    optimizers: Sequence[Mapping[int, Chunks]],
    *,
    tensor_parallel: int | None = None,
) -> Iterator[list[Placed]]:
    """Yield every way in which the buffers of all ranks have exactly the lengths that the parameters ask for.

    ``optimizers`` are those that are chained, experts' own second, each by the number of its model-parallel rank;
    ``tensor_parallel`` is the degree, where it is known.
    """
    model = Model.of(tensors)
    if model is None or len(optimizers) not in (1, 2):
        return
    dense = optimizers[0]
    if sorted(dense) != list(range(len(dense))):
        return
    for tp in [tensor_parallel] if tensor_parallel else range(1, len(dense) + 1):
        if len(dense) % tp:
            continue
        for order in model.orders():
            stages = _Stages(model, order, tp, len(dense) // tp, apart=len(optimizers) == 2)
            placed = stages.dense(dense)
            if placed is not None and len(optimizers) == 2:
                for experts in stages.experts(optimizers[1]):
                    yield [*placed, *experts]
            elif placed is not None:
                yield placed


class _Stages:
    """One guess at degrees and order: which layers each stage has follows from the lengths."""

    def __init__(self, model: Model, order: Order, tp: int, pp: int, *, apart: bool) -> None:
        self._model = model
        self._tied = order.tied
        self._parameters = RankParameters(model, order)
        self._tp = tp
        self._pp = pp
        self._apart = apart
        self._spans: dict[tuple[int, int], range] = {}

    def dense(self, ranks: Mapping[int, Chunks]) -> list[Placed] | None:
        """Return the parameters of the first optimizer; None where no division into stages has the lengths."""
        chunks = len(ranks[0])
        if any(len(held) != chunks for held in ranks.values()):
            return None
        begin, count = 0, len(self._model.layers)
        for chunk, stage in product(range(chunks), range(self._pp)):
            held = ranks[stage * self._tp][chunk]
            for stop in range(begin, count + 1):
                parameters = self._dense(range(begin, stop), stage, chunk, chunks, 0)
                if parameters is not None and _placed(parameters, held) is not None:
                    break
            else:
                return None
            self._spans[stage, chunk] = range(begin, stop)
            begin = stop
        if begin != count:
            return None
        placed: list[Placed] = []
        for (stage, chunk), span in self._spans.items():
            for tp in range(self._tp):
                rank = stage * self._tp + tp
                parameters = self._dense(span, stage, chunk, chunks, tp)
                places = None if parameters is None else _placed(parameters, ranks[rank][chunk])
                if places is None:
                    return None
                placed += [Placed(one, 0, rank, chunk, bucket, offset) for one, bucket, offset in places]
        return placed

    def experts(self, ranks: Mapping[int, Chunks]) -> Iterator[list[Placed]]:
        """Yield the parameters of experts' own optimizer, over ranks of tensor and expert parallelism of their own."""
        each, left = divmod(len(ranks), self._pp)
        if left or sorted(ranks) != list(range(len(ranks))):
            return
        for tp in range(1, each + 1):
            placed = self._experts(ranks, tp, each // tp) if each % tp == 0 else None
            if placed is not None:
                yield placed

    def _experts(self, ranks: Mapping[int, Chunks], tp: int, ep: int) -> list[Placed] | None:
        placed: list[Placed] = []
        for (stage, chunk), span in self._spans.items():
            for part, expert_rank in product(range(tp), range(ep)):
                rank = part + tp * (expert_rank + ep * stage)
                parameters: list[LocalParameter] = []
                for number in span:
                    local = self._parameters.layer(number, tp, part, ep, expert_rank)
                    if local is None:
                        return None
                    parameters += [one for one in local if is_expert_name(one.tensor.name)]
                held = ranks[rank][chunk] if chunk < len(ranks[rank]) else {}
                places = _placed(parameters, held)
                if places is None:
                    return None
                placed += [Placed(one, 1, rank, chunk, bucket, offset) for one, bucket, offset in places]
        return placed

    def _dense(
        self, span: range, stage: int, chunk: int, chunks: int, tp: int
    ) -> list[LocalParameter] | None:
        parameters: list[LocalParameter | None] = []
        if (stage, chunk) == (0, 0):
            parameters += [self._parameters.whole(tensor, self._tp, tp) for tensor in self._model.before]
        for number in span:
            local = self._parameters.layer(number, self._tp, tp, 1, 0)
            if local is None:
                return None
            parameters += [one for one in local if not (self._apart and is_expert_name(one.tensor.name))]
        if (stage, chunk) == (self._pp - 1, chunks - 1):
            parameters += [self._parameters.whole(tensor, self._tp, tp) for tensor in self._model.after]
            if self._tied and (stage, chunk) != (0, 0):
                # The last stage has a copy of the embedding, which is its output layer.
                parameters += [
                    self._parameters.whole(tensor, self._tp, tp) for tensor in self._model.embeddings
                ]
        known = [one for one in parameters if one is not None]
        return known if len(known) == len(parameters) else None


def _placed(
    parameters: Sequence[LocalParameter], held: Mapping[str, Buffer]
) -> list[tuple[LocalParameter, int, int]] | None:
    """Return each parameter in the buffer of its type; None where a buffer is over, missing, or of another length."""
    if {one.tensor.dtype for one in parameters} != set(held):
        return None
    placed: list[tuple[LocalParameter, int, int]] = []
    for kind, buffer in held.items():
        mine = [one for one in parameters if one.tensor.dtype == kind]
        places = _place_joined(mine, buffer) if buffer.sizes else place(mine, buffer.lengths)
        if places is None:
            return None
        placed += [(one, bucket, offset) for one, (bucket, offset) in zip(mine, places, strict=True)]
    return placed
