"""The run that saved a classic checkpoint: what ``args`` say, and which rank each directory is of.

A rank numbers its layers and experts from 0. Over the whole model layers are counted over the stages, and the chunks of
a virtual pipeline, in the order in which the model runs them; experts over the expert-parallel ranks
(megatron/core/transformer/transformer_layer.py, moe/experts.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.formats.megatron.classic_directory import MODEL, directory_name
from ucpformat.tensor_files.fields import mapping, member, refused
from ucpformat.tensor_files.object_tree import Instance

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = [
    "Place",
    "Run",
    "bucket_sizes",
    "layer_counts",
    "whole_name",
]

_CHUNK: Final = re.compile(r"model(\d{0,9})")
_LARGE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A rank: the numbers of its directory, and where it is."""

    number: tuple[int, ...]
    tp: int
    pp: int
    ep: int


@dataclass(frozen=True, slots=True)
class Run:
    """Degrees, and what else ``args`` say of the model; ``iteration`` is None where that is not said."""

    tp: int
    pp: int
    ep: int
    dp: int
    is_tied: bool
    is_gated: bool
    experts: int
    bucket_sizes: tuple[int | None, ...]
    iteration: int | None
    layers: Mapping[tuple[int, int], Mapping[str, int]] = field(repr=False)

    @classmethod
    def read(cls, trees: Mapping[tuple[int, ...], tuple[Mapping[Any, Any], str]]) -> Run:
        """Return what the files of all ranks say.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE``, naming the file, without ``args``, with ranks that are missing or of
                another step, and for degrees that contradict the directories.
        """
        first = min(trees)
        tree, at = trees[first]
        args = tree.get("args")
        if not isinstance(args, Instance) or not isinstance(args.state, dict):
            raise refused("there are no args, which say how the ranks are arranged", at)
        said: Mapping[str, Any] = args.state
        tp, pp, ep = (
            _degree(said, name, at)
            for name in (
                "tensor_model_parallel_size",
                "pipeline_model_parallel_size",
                "expert_model_parallel_size",
            )
        )
        for number in range(tp * pp * ep):
            wanted = _number(number % tp, number // tp % pp, number // (tp * pp), pp, ep)
            if wanted not in trees:
                raise refused("the directory of this rank is missing", f"{directory_name(wanted)}/{MODEL}")
        if len(trees) != tp * pp * ep:
            extra = max(trees)
            raise refused(f"args say TP {tp}, PP {pp}, EP {ep}: from two saves", trees[extra][1])
        _check_writers(trees, tp)
        layers: dict[tuple[int, int], Mapping[str, int]] = {}
        for place, (other, name) in trees.items():
            if repr(other.get("iteration")) != repr(tree.get("iteration")):
                raise refused(f"of another iteration than {at}: from two saves", name)
            stage = place[1] if pp > 1 else 0
            for chunk, key in enumerate(_chunks(other)):
                layers[stage, chunk] = layer_counts(map(str, mapping(member(other, key, name), key, name)))
        experts = said.get("num_experts")
        iteration = tree.get("iteration")
        dp = said.get("data_parallel_size")
        return cls(
            tp,
            pp,
            ep,
            dp if type(dp) is int and 0 < dp < _LARGE else 1,
            said.get("untie_embeddings_and_output_weights") is False,
            said.get("swiglu") is True,
            experts if type(experts) is int and 0 < experts < _LARGE else 0,
            bucket_sizes(said),
            iteration if type(iteration) is int and iteration >= 0 else None,
            layers,
        )

    def place(self, number: tuple[int, ...]) -> Place:
        """Return where the rank of a directory is."""
        rest = list(number[1:])
        stage = rest.pop(0) if self.pp > 1 else 0
        return Place(number, number[0], stage, rest.pop(0) if rest else 0)

    @staticmethod
    def is_model(key: str) -> bool:
        """Return whether a member of a file is a module: ``model``, or ``model0`` and so on of a virtual pipeline."""
        return _CHUNK.fullmatch(key) is not None

    @staticmethod
    def chunks(tree: Mapping[Any, Any]) -> list[str]:
        """Return the members that are modules, in the order of the chunks."""
        return _chunks(tree)

    @property
    def local_experts(self) -> int:
        """Experts of a rank, per layer."""
        return self.experts // self.ep

    @property
    def pattern_parameters(self) -> str:
        """What the ready-made patterns ask."""
        return f"gated={int(self.is_gated)},experts={max(self.experts, 1)}"

    def layers_before(self, stage: int, chunk: int, own: Mapping[str, int]) -> dict[str, int]:
        """Return the number of layers in earlier chunks and stages, by prefix; first chunks precede second ones."""
        return {
            prefix: sum(
                counts.get(prefix, 0)
                for (other, number), counts in self.layers.items()
                if (number, other) < (chunk, stage)
            )
            for prefix in own
        }

    def degrees(self) -> dict[str, JsonValue]:
        """Return the degrees of the run, for the record."""
        return {"tp": self.tp, "pp": self.pp, "ep": self.ep, "dp": self.dp}


def _check_writers(trees: Mapping[tuple[int, ...], tuple[Mapping[Any, Any], str]], tp: int) -> None:
    """Refuse a file in the directory of another rank, by ``args.rank``: tensor-parallel ranks count first, stages last.

    Where a tool wrote all files in one process, they have one rank, which says nothing.
    """
    ranks: dict[tuple[int, ...], int] = {}
    for number, (tree, _) in trees.items():
        args = tree.get("args")
        rank = args.state.get("rank") if isinstance(args, Instance) and isinstance(args.state, dict) else None
        if type(rank) is int:
            ranks[number] = rank
    if len(ranks) != len(trees) or len(set(ranks.values())) != len(ranks):
        return
    for number, rank in ranks.items():
        before = (number[0], number[1] - 1, *number[2:]) if len(number) > 1 else number
        if rank % tp != number[0] or ranks.get(before, rank) > rank:
            raise refused(
                f"rank {rank} of the job wrote it, which has another directory: files were exchanged",
                trees[number][1],
            )


def _chunks(tree: Mapping[Any, Any]) -> list[str]:
    keys = [
        (int(match[1] or 0), key) for key in tree if isinstance(key, str) and (match := _CHUNK.fullmatch(key))
    ]
    return [key for _, key in sorted(keys)]


def _number(tp: int, stage: int, expert_rank: int, pp: int, ep: int) -> tuple[int, ...]:
    return (tp, *((stage,) if pp > 1 else ()), *((expert_rank,) if ep > 1 else ()))


def _degree(said: Mapping[str, Any], name: str, at: str) -> int:
    value = said.get(name, 1)
    if type(value) is not int or not 0 < value < _LARGE:
        raise refused(f"args.{name} is {value!r:.20}", at)
    return value


def bucket_sizes(said: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Return sizes of the buckets of gradients that the job may have had, the one that is said first (training.py)."""
    given = said.get("ddp_bucket_size")
    dp = said.get("data_parallel_size")
    usual = max(40_000_000, 1_000_000 * dp) if type(dp) is int and 0 < dp < _LARGE else 40_000_000
    sized: list[int | None] = [given if type(given) is int and given > 0 else usual]
    return tuple([*sized, None] if said.get("overlap_grad_reduce") is True else [None, *sized])


_LAYER: Final = re.compile(r"(.*\blayers\.)(\d{1,6})(\..+)", re.DOTALL)
_EXPERT: Final = (
    re.compile(r"(.*\.experts\.local_experts\.)(\d{1,6})(\..+)", re.DOTALL),
    re.compile(r"(.*\.experts\.linear_fc[12]\.(?:weight|bias))(\d{1,6})()"),
)


def layer_counts(names: Iterable[str]) -> dict[str, int]:
    """Return how many layers there are under each prefix, such as ``decoder.layers.``."""
    counts: dict[str, int] = {}
    for name in names:
        if match := _LAYER.fullmatch(name):
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def whole_name(name: str, layers_before: Mapping[str, int], expert_rank: int, local_experts: int) -> str:
    """Return the name over the whole model; ``layers_before`` are by prefix those of earlier stages and chunks."""
    if match := _LAYER.fullmatch(name):
        name = f"{match[1]}{int(match[2]) + layers_before.get(match[1], 0)}{match[3]}"
    for pattern in _EXPERT:
        if match := pattern.fullmatch(name):
            return f"{match[1]}{int(match[2]) + expert_rank * local_experts}{match[3]}"
    return name


def is_expert(name: str) -> bool:
    """Return whether a parameter is of one expert."""
    return any(pattern.fullmatch(name) for pattern in _EXPERT)
