"""DeepSpeed's mixtures of experts: files of single experts, and groups that only some ranks share.

Source: DeepSpeed 0.19.8, ``runtime/engine.py`` (``_save_moe_checkpoint``), ``utils/groups.py``
(``_create_expert_and_data_parallel``), ``runtime/zero/stage_1_and_2.py`` (``_configure_moe_settings``). A rank knows
its experts by local numbers, the files by global ones; atoms have the names of the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ucpformat.conversion.contract.sources import EqualSources
from ucpformat.conversion.formats.deepspeed.experts.stacks import expert_name
from ucpformat.conversion.formats.deepspeed.files.model_draft import ModelDraft
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates, OptimizerStates, Shapes
from ucpformat.conversion.formats.deepspeed.zero.unpartitioned import unpartitioned_states
from ucpformat.tensor_files.fields import mapping, member, refused, tensors
from ucpformat.tensor_files.object_tree import spelled
from ucpformat.tensor_files.torch_file import rank_file

if TYPE_CHECKING:
    from ucpformat.conversion.formats.deepspeed.files.directory import DeepSpeedDirectory

__all__ = [
    "ExpertRanks",
    "add_unpartitioned_experts",
    "are_shared",
    "expert_layers",
    "with_experts",
    "without_experts",
]


def are_shared(directory: DeepSpeedDirectory) -> bool:
    """Return whether tensor-parallel ranks hold whole experts, each its own, so that one expert's files are of one."""
    places: dict[tuple[int, int], int] = {}
    for layer, expert, _ in directory.experts:
        places[layer, expert] = places.get((layer, expert), 0) + 1
    return directory.model_degree > 1 and set(places.values()) == {1}


def with_experts(
    directory: DeepSpeedDirectory, model: ModelStates, position: int | None = None
) -> ModelStates:
    """Return ``model`` with the parameters that the files of experts hold: those of a model-parallel rank, or all.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for an expert that is missing or in the wrong file.
    """
    at = model.file.name
    if model.values.get("ds_autoep_layers"):
        raise refused("saved by AutoEP, whose stacked experts are not read", at)
    counts = model.values.get("num_experts")
    if not isinstance(counts, list) or not all(
        type(count) is int and 0 < count < 1 << 20 for count in counts
    ):
        raise refused("num_experts does not list the experts of each layer", at)
    module, homes = dict(model.module), dict(model.homes)
    files = {
        (layer, expert): name
        for (layer, expert, rank), name in directory.experts.items()
        if position in (None, rank)
    }
    # The model file has the buffers of experts under the numbers that rank 0 gives them.
    buffers = {name for name in model.buffers if expert_name(name) is None}
    of_experts = {(parsed[0], parsed[2]) for name in model.buffers if (parsed := expert_name(name))}
    for layer, count in enumerate(counts):
        for expert in range(count):
            name = files.get((layer, expert))
            if name is None:
                names = " or ".join(_expert_files(directory, layer, expert, position))
                raise refused(f"{names} is missing; copy the files of all ranks into one directory", at)
            file = rank_file(directory.files, name)
            for key, stored in tensors(file.tree, "the file", name).items():
                parsed = expert_name(key)
                if parsed is None or parsed[1] != expert or key in module:
                    raise refused(f"{key!r:.200} is not of this expert alone", name)
                module[key], homes[key] = stored, file
                if (parsed[0], parsed[2]) in of_experts:
                    buffers.add(key)
    extra = [name for (layer, expert), name in files.items() if not _is_there(layer, expert, counts)]
    if extra:
        raise refused(f"the layers have {counts} experts: from two saves", min(extra))
    return replace(model, module=module, homes=homes, buffers=frozenset(buffers))


def _expert_files(directory: DeepSpeedDirectory, layer: int, expert: int, position: int | None) -> list[str]:
    """Return what the file of an expert may be called: other layers may tell which model-parallel rank has it."""
    ranks = {rank for _, other, rank in directory.experts if other == expert} or set(
        range(directory.model_degree)
    )
    return [
        f"layer_{layer}_expert_{expert}_mp_rank_{rank:02d}_model_states.pt"
        for rank in (sorted(ranks) if position is None else [position])
    ]


def expert_layers(model: ModelStates) -> list[str]:
    """Return what is before the numbers of each mixture's experts, in the order of their files."""
    prefixes: dict[str, None] = {}
    for name in model.homes:
        if place := expert_name(name):
            prefixes[place[0]] = None
    return list(prefixes)


def _is_there(layer: int, expert: int, counts: Sequence[int]) -> bool:
    return 0 <= layer < len(counts) and expert < counts[layer]


def without_experts(
    ranks: Sequence[OptimizerStates], count: int, shapes: Shapes
) -> Iterator[tuple[Sequence[OptimizerStates], Shapes]]:
    """Yield a group that all ranks share; nothing where it is of experts. For `flat_groups`."""
    if not any(expert_name(name) for name in shapes):
        yield ranks, shapes


class ExpertRanks:
    """Who shares which flat group, and what each calls the parameters; for `flat_groups`.

    ``has_others`` is false where the groups of other parameters are left out.
    """

    def __init__(
        self, model: ModelStates, ranks: Sequence[OptimizerStates], *, has_others: bool = True
    ) -> None:
        self._ranks = ranks
        self._has_others = has_others
        self._at = model.file.name
        config = model.values.get("ds_config")
        self._data_first = (
            isinstance(config, dict) and config.get("use_data_before_expert_parallelism") is True
        )
        self._local: dict[str, int] = {}
        for shapes in model.groups or ():
            for name in shapes:
                if parsed := expert_name(name):
                    self._local[parsed[0]] = max(self._local.get(parsed[0], 0), parsed[1] + 1)

    def __call__(self, count: int, shapes: Shapes) -> Iterator[tuple[Sequence[OptimizerStates], Shapes]]:
        """Yield ranks and global names of a group that ``count`` ranks share."""
        if not any(expert_name(name) for name in shapes):
            if self._has_others:
                yield self._ranks, shapes
            return
        degree, rest = divmod(len(self._ranks), count or 1)
        if rest or not degree:
            raise refused(f"{count} of {len(self._ranks)} ranks share the experts of {self._at}", self._at)
        for rank in range(degree):
            sharing = (
                self._ranks[rank * count : (rank + 1) * count]
                if self._data_first
                else self._ranks[rank::degree]
            )
            yield sharing, {self._named(name, rank): shape for name, shape in shapes.items()}

    def _named(self, name: str, rank: int) -> str:
        parsed = expert_name(name)
        if parsed is None:
            raise refused(f"{name!r} is in a group of experts", self._at)
        before, number, behind = parsed
        return f"{before}{rank * self._local[before] + number}{behind}"


def add_unpartitioned_experts(
    directory: DeepSpeedDirectory,
    model: ModelStates,
    draft: ModelDraft,
    groups: list[tuple[list[str], Mapping[str, Any]]],
    position: int = 0,
) -> None:
    """Add states without ZeRO: one file of each expert-parallel rank has them, those of other parameters in each.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where ranks contradict each other, or one is missing.
    """
    keys = sorted(place for place in directory.expert_optimizer if place[1] == position)
    files = [directory.expert_optimizer[place] for place in keys]
    if not files:
        raise refused(f"expp_rank_0_mp_rank_{position:02d}_optim_states.pt is missing", model.file.name)
    for rank, name in enumerate(files):
        if keys[rank][0] != rank:
            raise refused(
                f"expp_rank_{rank}_mp_rank_{position:02d}_optim_states.pt, before it, is missing", name
            )
    experts = [name for name in model.module if expert_name(name)]
    for rank, file_name in enumerate(files):
        file = rank_file(directory.files, file_name)
        optimizer = mapping(
            member(mapping(file.tree, "the file", file_name), "optimizer", file_name), "optimizer", file_name
        )
        mine = [name for name in experts if _is_of(name, rank, len(files), experts)]
        listed: list[tuple[list[str], Mapping[str, Any]]] = []
        seen = replace(model, file=file, optimizer=optimizer)
        for atom, slot, kind, shape, read in unpartitioned_states(seen, listed, mine):
            known = draft.sources.get((atom, slot))
            if known is None:
                draft.add(atom, slot, kind, shape, read)
            else:
                draft.sources[atom, slot] = EqualSources(known, read, f"{atom}/{slot}", file_name)
        if sum(len(names) for names, options in listed if options.get("moe")) != len(mine):
            raise refused(
                f"its optimizer does not have the {len(mine)} parameters of experts that are this rank's of "
                f"{len(files)}: expp_rank_{len(files)}_mp_rank_{position:02d}_optim_states.pt is missing, or experts "
                "are frozen",
                file_name,
            )
        if rank == 0:
            groups.extend(listed)
            continue
        for (names, options), (others, other_options) in zip(groups, listed, strict=True):
            if spelled(options) != spelled(other_options):
                raise refused(f"other hyper-parameters than {files[0]}: from two saves", file_name)
            names.extend(name for name in others if name not in names)


def _is_of(name: str, rank: int, degree: int, names: Sequence[str]) -> bool:
    """Return whether an expert is one of a rank's."""
    parsed = expert_name(name)
    if parsed is None:
        return False
    count = 1 + max(other[1] for item in names if (other := expert_name(item)) and other[0] == parsed[0])
    return parsed[1] * degree // count == rank
