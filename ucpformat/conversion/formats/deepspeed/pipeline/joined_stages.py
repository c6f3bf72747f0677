"""Join what the files of model-parallel ranks hold, stage by stage, into one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ucpformat.conversion.contract.draft import joined_drafts
from ucpformat.conversion.formats.deepspeed.files.model_draft import ModelDraft
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates, OptimizerStates
from ucpformat.conversion.formats.deepspeed.zero.flat_groups import FlatGroup
from ucpformat.tensor_files.object_tree import spelled

__all__ = ["ParameterGroups", "RankAtoms", "RankFiles", "joined_stages"]

ParameterGroups = list[tuple[list[str], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of a model-parallel rank: models and optimizers of its data-parallel ranks, and the flat groups."""

    models: Sequence[ModelStates]
    ranks: Sequence[OptimizerStates]
    flat: Sequence[FlatGroup]
    number: int = 0

    @property
    def model(self) -> ModelStates:
        """The model of the first rank, which names the parameters."""
        return self.models[0]


@dataclass(frozen=True, slots=True)
class RankAtoms:
    """The atoms of one model-parallel rank, and its parameter groups: names and options.

    ``unseen`` is how many layers may be behind the last one that has a file.
    """

    files: RankFiles
    draft: ModelDraft
    groups: ParameterGroups
    unseen: int = 0


def joined_stages(ranks: Sequence[RankAtoms]) -> tuple[ModelDraft, ParameterGroups]:
    """Return one draft and the parameter groups of all stages; what several hold must be equal, bit by bit.

    The layouts in which the stages held their buffers are not carried: each is over ranks of its own.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where stages have other states or shapes of a tied weight.
    """
    groups: ParameterGroups = []
    for rank in ranks:
        _join_groups(groups, rank.groups)
    return joined_drafts([(rank.draft, rank.files.model.file.name) for rank in ranks]), groups


def _join_groups(groups: ParameterGroups, others: ParameterGroups) -> None:
    """Add a stage's parameter groups: each to the next of equal options, for a stage may lack one."""
    start = 0
    for names, options in others:
        wanted = spelled(options)
        match = next((n for n in range(start, len(groups)) if spelled(groups[n][1]) == wanted), None)
        if match is None:
            groups.append((list(names), options))
            start = len(groups)
            continue
        held = groups[match][0]
        held += [name for name in names if name not in held]
        start = match + 1
