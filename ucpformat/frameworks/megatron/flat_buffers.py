"""Which parameter lies where in the flat buffers of distributed optimizers, found from what a checkpoint does say.

``dp_reshardable`` and ``dp_zero_gather_scatter`` store the buffers of each model-parallel rank as they are
(megatron-core 0.16.1, optimizer/distrib_optimizer.py) and name no parameter in them. What is known: the shards of the
model's tensors, the length of every bucket, and the rule by which a buffer is filled (`buffers`), last parameter
first. Degrees, the layers of each stage and the order of modules follow where they give all lengths exactly.

All here is integers; whether the parameters found are the right ones is for `flat_states` to see in their values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from ucpformat.frameworks.megatron.buffers import PARAMETER_ALIGNMENT, BufferParameter, assign_buckets
from ucpformat.frameworks.megatron.parameter_groups import is_expert_name, stacked_dims
from ucpformat.geometry import Box, element_count

__all__ = ["Buffer", "LocalParameter", "ModelTensor", "Placed", "place", "resolve"]


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of the model under its key, with the shards that were saved of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Box, ...]


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
class LocalParameter:
    """A parameter of one rank: the boxes of its tensor that it has, one after another in memory."""

    tensor: ModelTensor
    boxes: tuple[Box, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return sum(element_count(box.shape) for box in self.boxes)


@dataclass(frozen=True, slots=True)
class Placed:
    """A parameter in the buffers: of which optimizer, rank, chunk and bucket, and its first element there."""

    parameter: LocalParameter
    chained: int
    rank: int
    chunk: int
    bucket: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Order:
    """An order of modules: ranks of suffixes (none for that of the checkpoint), and of experts' tensors."""

    suffixes: tuple[str, ...]
    by_expert: bool
    tied: bool


# The modules of a layer in the order in which Megatron makes them; keys of fused norms are those of stored tensors.
_ATTENTION: Final = (
    "self_attention.linear_proj.",
    "self_attention.linear_qkv.",
    "self_attention.q_layernorm.",
)
_LAYER: Final = (
    *_ATTENTION,
    "self_attention.k_layernorm.",
    "pre_mlp_layernorm.",
    "mlp.router.",
    "mlp.linear_fc1.",
    "mlp.linear_fc2.",
    "mlp.experts.",
    "mlp.shared_experts.",
)
_LOCAL: Final = (
    "self_attention.linear_qkv.layer_norm_",
    *_LAYER[:4],
    "mlp.linear_fc1.layer_norm_",
    *_LAYER[4:],
)
_NUMBERED: Final = re.compile(r"(.*\blayers\.)(\d{1,6})\.(.+)", re.DOTALL)
_STACKED: Final = re.compile(r"(.*\blayers\.)(?!\d+\.)(.+)", re.DOTALL)
_EMBEDDING: Final = "embedding.word_embeddings.weight"
_OUTPUT: Final = "output_layer.weight"

_Member = tuple[
    ModelTensor, str, int | None
]  # with what follows the number of the layer, and the index in a stack


_Shards = dict[str, dict[tuple[int, ...], list[Box]]]  # of each tensor by layer and expert, in order


@dataclass(frozen=True, slots=True)
class _Model:
    shards: _Shards
    before: tuple[ModelTensor, ...]
    layers: tuple[tuple[_Member, ...], ...]
    after: tuple[ModelTensor, ...]

    @classmethod
    def of(cls, tensors: Sequence[ModelTensor]) -> _Model | None:
        """The tensors by layer; None where layers have several prefixes, or are not saved one by one."""
        shards: _Shards = {}
        prefixes: set[str] = set()
        layers: dict[int, list[_Member]] = {}
        rest = []
        for tensor in tensors:
            depth = stacked_dims(tensor.name)
            if len(tensor.shape) < depth or any(
                extent != 1 for box in tensor.shards for extent in box.shape[:depth]
            ):
                return None
            held = shards.setdefault(tensor.name, {})
            for box in sorted(tensor.shards, key=lambda box: box.offset):
                held.setdefault(box.offset[:depth], []).append(box)
            numbered, stacked = _NUMBERED.fullmatch(tensor.name), _STACKED.fullmatch(tensor.name)
            if numbered is not None:
                prefixes.add(numbered[1])
                layers.setdefault(int(numbered[2]), []).append((tensor, numbered[3], None))
            elif stacked is not None and tensor.shape and tensor.shape[0] <= len(tensor.shards):
                prefixes.add(f"{stacked[1]}*")
                for number in range(tensor.shape[0]):
                    layers.setdefault(number, []).append((tensor, stacked[2], number))
            else:
                rest.append(tensor)
        if len(prefixes) > 1 or sorted(layers) != list(range(len(layers))):
            return None
        before = tuple(tensor for tensor in rest if tensor.name.startswith("embedding."))
        return cls(
            shards,
            before,
            tuple(tuple(layers[number]) for number in range(len(layers))),
            tuple(tensor for tensor in rest if tensor not in before),
        )


def place(parameters: Sequence[LocalParameter], lengths: Sequence[int]) -> list[tuple[int, int]] | None:
    """The bucket and the first element of each parameter, in the order of the model; None unless lengths are exact."""
    found: list[tuple[int, int]] = []
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
        found.append((bucket, start))
        end = start + numel
    if bucket + 1 != len(lengths) or not _is_full(end, lengths[bucket]):
        return None
    return found[::-1]


def _place_joined(parameters: Sequence[LocalParameter], buffer: Buffer) -> list[tuple[int, int]] | None:
    """As `place`, of buckets that lie one after another as one."""
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
    """Whether a bucket ends here. Before a shared embedding its alignment counts as part of the bucket."""
    return end > 0 and length in (end, _up(end))


def resolve(
    tensors: Sequence[ModelTensor],
    optimizers: Sequence[Mapping[int, Chunks]],
    *,
    tensor_parallel: int | None = None,
) -> Iterator[list[Placed]]:
    """Every way in which the buffers of all ranks have exactly the lengths that the parameters ask for.

    ``optimizers`` are those that are chained, experts' own second, each by the number of its model-parallel rank;
    ``tensor_parallel`` is the degree, where it is known.
    """
    model = _Model.of(tensors)
    if model is None or len(optimizers) not in (1, 2):
        return
    dense = optimizers[0]
    if sorted(dense) != list(range(len(dense))):
        return
    tied = (False, True) if all(tensor.name != _OUTPUT for tensor in model.after) else (False,)
    orders = [
        _Order(suffixes, by_expert, is_tied)
        for suffixes, by_expert, is_tied in product(((), _LAYER, _LOCAL), (True, False), tied)
    ]
    for tp in [tensor_parallel] if tensor_parallel else range(1, len(dense) + 1):
        if len(dense) % tp:
            continue
        for order in orders:
            stages = _Stages(model, order, tp, len(dense) // tp, apart=len(optimizers) == 2)
            found = stages.dense(dense)
            if found is not None and len(optimizers) == 2:
                for experts in stages.experts(optimizers[1]):
                    yield [*found, *experts]
            elif found is not None:
                yield found


class _Stages:
    """One guess at degrees and order: which layers each stage has follows from the lengths."""

    def __init__(self, model: _Model, order: _Order, tp: int, pp: int, *, apart: bool) -> None:
        self._model = model
        self._order = order
        self._tp = tp
        self._pp = pp
        self._apart = apart
        self._spans: dict[tuple[int, int], range] = {}
        self._layers: dict[tuple[int, int, int, int, int], list[LocalParameter] | None] = {}

    def dense(self, ranks: Mapping[int, Chunks]) -> list[Placed] | None:
        """The parameters of the first optimizer; None where no division into stages has the lengths."""
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
        found: list[Placed] = []
        for (stage, chunk), span in self._spans.items():
            for tp in range(self._tp):
                rank = stage * self._tp + tp
                parameters = self._dense(span, stage, chunk, chunks, tp)
                places = None if parameters is None else _placed(parameters, ranks[rank][chunk])
                if places is None:
                    return None
                found += [Placed(one, 0, rank, chunk, bucket, offset) for one, bucket, offset in places]
        return found

    def experts(self, ranks: Mapping[int, Chunks]) -> Iterator[list[Placed]]:
        """The parameters of experts' own optimizer, over ranks of tensor and expert parallelism of their own."""
        each, left = divmod(len(ranks), self._pp)
        if left or sorted(ranks) != list(range(len(ranks))):
            return
        for tp in range(1, each + 1):
            found = self._experts(ranks, tp, each // tp) if each % tp == 0 else None
            if found is not None:
                yield found

    def _experts(self, ranks: Mapping[int, Chunks], tp: int, ep: int) -> list[Placed] | None:
        found: list[Placed] = []
        for (stage, chunk), span in self._spans.items():
            for part, expert_rank in product(range(tp), range(ep)):
                rank = part + tp * (expert_rank + ep * stage)
                parameters: list[LocalParameter] = []
                for number in span:
                    local = self._layer(number, tp, part, ep, expert_rank)
                    if local is None:
                        return None
                    parameters += [one for one in local if is_expert_name(one.tensor.name)]
                held = ranks[rank][chunk] if chunk < len(ranks[rank]) else {}
                places = _placed(parameters, held)
                if places is None:
                    return None
                found += [Placed(one, 1, rank, chunk, bucket, offset) for one, bucket, offset in places]
        return found

    def _dense(
        self, span: range, stage: int, chunk: int, chunks: int, tp: int
    ) -> list[LocalParameter] | None:
        parameters: list[LocalParameter | None] = []
        if (stage, chunk) == (0, 0):
            parameters += [self._whole(tensor, tp) for tensor in self._model.before]
        for number in span:
            local = self._layer(number, self._tp, tp, 1, 0)
            if local is None:
                return None
            parameters += [one for one in local if not (self._apart and is_expert_name(one.tensor.name))]
        if (stage, chunk) == (self._pp - 1, chunks - 1):
            parameters += [self._whole(tensor, tp) for tensor in self._model.after]
            if self._order.tied and (stage, chunk) != (0, 0):
                # The last stage has a copy of the embedding, which is its output layer.
                shared = [tensor for tensor in self._model.before if tensor.name == _EMBEDDING]
                parameters += [self._whole(tensor, tp) for tensor in shared]
        known = [one for one in parameters if one is not None]
        return known if len(known) == len(parameters) else None

    def _whole(self, tensor: ModelTensor, tp: int) -> LocalParameter | None:
        return self._local(tensor, (), self._tp, tp)

    def _layer(
        self, number: int, tp: int, part: int, ep: int, expert_rank: int
    ) -> list[LocalParameter] | None:
        """The parameters of a layer in the order of its modules."""
        key = (number, tp, part, ep, expert_rank)
        if key not in self._layers:
            self._layers[key] = self._listed(*key)
        return self._layers[key]

    def _listed(
        self, number: int, tp: int, part: int, ep: int, expert_rank: int
    ) -> list[LocalParameter] | None:
        members = self._model.layers[number]
        if self._order.suffixes:
            members = tuple(sorted(members, key=lambda member: self._rank(member[1])))
        found: list[LocalParameter | None] = []
        experts = [member for member in members if _stacks_experts(member)]
        for member in members:
            if not _stacks_experts(member):
                lead = () if member[2] is None else (member[2],)
                found.append(self._local(member[0], lead, tp, part))
            elif member is experts[0]:
                found += self._expert_parameters(experts, tp, part, ep, expert_rank)
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else None

    def _expert_parameters(
        self, experts: Sequence[_Member], tp: int, part: int, ep: int, expert_rank: int
    ) -> list[LocalParameter | None]:
        first = experts[0]
        count = first[0].shape[0 if first[2] is None else 1]
        if count % ep or count > len(first[0].shards):
            return [None]
        local = range(count // ep * expert_rank, count // ep * (expert_rank + 1))
        pairs = (
            ((expert, member) for expert in local for member in experts)
            if self._order.by_expert
            else ((expert, member) for member in experts for expert in local)
        )
        return [
            self._local(member[0], (expert,) if member[2] is None else (member[2], expert), tp, part)
            for expert, member in pairs
        ]

    def _local(self, tensor: ModelTensor, lead: tuple[int, ...], tp: int, part: int) -> LocalParameter | None:
        """What a tensor-parallel rank has of a tensor, a layer or an expert: all, a shard, or gate and up."""
        shards = self._model.shards[tensor.name].get(lead, [])
        if len(shards) == 1:
            return LocalParameter(tensor, (shards[0],))
        if len(shards) == tp:
            return LocalParameter(tensor, (shards[part],))
        behind = slice(len(lead) + 1, None)
        if len(shards) == 2 * tp and not any(any(box.offset[behind]) for box in shards):
            return LocalParameter(tensor, (shards[part], shards[tp + part]))
        return None

    def _rank(self, suffix: str) -> int:
        # The longest prefix counts: a norm that is stored with a fused layer may be a module of its own.
        ranked = [
            (len(head), place) for place, head in enumerate(self._order.suffixes) if suffix.startswith(head)
        ]
        return max(ranked)[1] if ranked else len(self._order.suffixes)


def _stacks_experts(member: _Member) -> bool:
    return stacked_dims(member[0].name) > (member[2] is not None)


def _placed(
    parameters: Sequence[LocalParameter], held: Mapping[str, Buffer]
) -> list[tuple[LocalParameter, int, int]] | None:
    """Each parameter in the buffer of its type; None where a buffer is over, missing, or of another length."""
    if {one.tensor.dtype for one in parameters} != set(held):
        return None
    found: list[tuple[LocalParameter, int, int]] = []
    for kind, buffer in held.items():
        mine = [one for one in parameters if one.tensor.dtype == kind]
        places = _place_joined(mine, buffer) if buffer.sizes else place(mine, buffer.lengths)
        if places is None:
            return None
        found += [(one, bucket, offset) for one, (bucket, offset) in zip(mine, places, strict=True)]
    return found
