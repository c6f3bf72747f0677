"""Which parameters a model-parallel rank of Megatron has, in the order in which its modules make them.

Found from the shards of tensors for one guess at degrees and order; `flat_buffers` says which guess is right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from ucpformat.conversion.formats.megatron.parameter_groups import stacked_dims
from ucpformat.geometry import Box

__all__ = ["LocalParameter", "Model", "ModelTensor", "Order", "RankParameters"]


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of the model under its key, with the shards that were saved of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class LocalParameter:
    """A parameter of one rank: the boxes of its tensor that it has, one after another in memory."""

    tensor: ModelTensor
    boxes: tuple[Box, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return sum(math.prod(box.shape) for box in self.boxes)


@dataclass(frozen=True, slots=True)
class Order:
    """An order of modules: ranks of suffixes (none for that of the checkpoint), and of experts' tensors.

    Where it is ``tied``, the last stage has the embedding once more.
    """

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

# With what follows the number of the layer, and the index in a stack.
_Member = tuple[ModelTensor, str, int | None]
# Of each tensor by layer and expert, in order.
_Shards = dict[str, dict[tuple[int, ...], list[Box]]]


@dataclass(frozen=True, slots=True)
class Model:
    """The tensors by layer, and those before and after all layers."""

    shards: _Shards
    before: tuple[ModelTensor, ...]
    layers: tuple[tuple[_Member, ...], ...]
    after: tuple[ModelTensor, ...]

    @classmethod
    def of(cls, tensors: Sequence[ModelTensor]) -> Model | None:
        """Return the tensors by layer; None where layers have several prefixes, or are not saved one by one."""
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

    def orders(self) -> list[Order]:
        """Return every order that modules may have; without an output layer of its own, the embedding may be tied."""
        tied = (False, True) if all(tensor.name != _OUTPUT for tensor in self.after) else (False,)
        return [
            Order(suffixes, by_expert, is_tied)
            for suffixes, by_expert, is_tied in product(((), _LAYER, _LOCAL), (True, False), tied)
        ]

    @property
    def embeddings(self) -> tuple[ModelTensor, ...]:
        """The embedding that an output layer may share, if there is one."""
        return tuple(tensor for tensor in self.before if tensor.name == _EMBEDDING)


class RankParameters:
    """The parameters of every rank under one order of modules; None wherever shards do not fit the degrees."""

    def __init__(self, model: Model, order: Order) -> None:
        self._model = model
        self._order = order
        self._layers: dict[tuple[int, int, int, int, int], list[LocalParameter] | None] = {}

    def whole(self, tensor: ModelTensor, tp: int, part: int) -> LocalParameter | None:
        """Return what a tensor-parallel rank has of a tensor outside the layers."""
        return self._local(tensor, (), tp, part)

    def layer(
        self, number: int, tp: int, part: int, ep: int, expert_rank: int
    ) -> list[LocalParameter] | None:
        """Return the parameters of a layer in the order of its modules."""
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
        parameters: list[LocalParameter | None] = []
        experts = [member for member in members if _stacks_experts(member)]
        for member in members:
            if not _stacks_experts(member):
                lead = () if member[2] is None else (member[2],)
                parameters.append(self._local(member[0], lead, tp, part))
            elif member is experts[0]:
                parameters += self._expert_parameters(experts, tp, part, ep, expert_rank)
        known = [one for one in parameters if one is not None]
        return known if len(known) == len(parameters) else None

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
        """Return what a tensor-parallel rank has of a tensor, a layer or an expert: all, a shard, or gate and up."""
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
