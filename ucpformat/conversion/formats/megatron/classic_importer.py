"""Classic checkpoints of Megatron-LM to universal ones: whole tensors under the names of the whole model.

Shards of tensor-parallel ranks are merged by patterns, which are those of ``megatron-gpt`` unless others are asked
for (`shard_patterns`). Nothing is unpickled but through the allow-list of `torch_dist`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.contract.draft import Draft, joined_drafts
from ucpformat.conversion.contract.job import Job, ReadBox
from ucpformat.conversion.contract.shard_patterns import ShardPatterns
from ucpformat.conversion.contract.sources import (
    AgreeingSources,
    CastSource,
    EqualSources,
    Whole,
    shard_source,
)
from ucpformat.conversion.formats.megatron.classic_directory import (
    MODEL,
    OPTIMIZER,
    ClassicDirectory,
    directory_name,
)
from ucpformat.conversion.formats.megatron.classic_optimizer import (
    LocalParameter,
    Options,
    bucketed_states,
    groups_of,
    numbered_states,
    options_of,
)
from ucpformat.conversion.formats.megatron.classic_run import Place, Run, is_expert, layer_counts, whole_name
from ucpformat.conversion.formats.megatron.torch_dist import COMMON_GLOBALS
from ucpformat.errors import UcpError, error
from ucpformat.model.dtype import dtype
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.state_dict.keys.origins import SOURCE
from ucpformat.tensor_files.deepspeed_globals import DEEPSPEED_GLOBALS
from ucpformat.tensor_files.fields import mapping, member, refused
from ucpformat.tensor_files.object_tree import Instance, spelled
from ucpformat.tensor_files.tagged import encode
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["FORMAT", "import_classic"]

FORMAT: Final = "megatron-classic"
_PATTERNS: Final = "megatron-gpt"
_GLOBALS: Final = {**DEEPSPEED_GLOBALS, **COMMON_GLOBALS}
"""Master copies are tensors with attributes, as DeepSpeed's are."""
_OWN: Final = ("optimizer",)
_EMBEDDING: Final = "embedding.word_embeddings.weight"
_OUTPUT: Final = "output_layer.weight"


def import_classic(path: str | os.PathLike[str], settings: Mapping[str, str] | None = None) -> Job:
    """Plan the conversion of ``mp_rank_*`` directories; no tensor is read yet.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for what is damaged, incomplete or of two saves, and
            for optimizers that do not fit the model; ``UCP-E-PICKLE`` and ``UCP-E-OBJECT`` for what is no plain data;
            ``UCP-E-UNMATCHED`` where the patterns know a tensor not.
    """
    directory = ClassicDirectory.open(path)
    files = {
        rank: TorchFile(directory.files, f"{name}/{MODEL}", _GLOBALS)
        for rank, name in directory.ranks.items()
    }
    trees = {rank: mapping(file.tree, "the file", file.name) for rank, file in files.items()}
    run = Run.read({rank: (trees[rank], files[rank].name) for rank in files})
    ranks = [_rank(directory, run, rank, files[rank], trees[rank]) for rank in sorted(files)]
    merged = []
    for stage in range(run.pp):
        for expert_rank in range(run.ep):
            group = [rank for rank in ranks if (rank.place.pp, rank.place.ep) == (stage, expert_rank)]
            merged.append((_merged(group, run, settings or {}), group[0].file.name))
    draft = joined_drafts(merged)
    return Job(
        atoms=draft.atoms(),
        sources=draft.slot_sources(),
        state=_state(ranks, run),
        step=run.iteration,
    )


@dataclass(slots=True)
class _Rank:
    """What the directory of one rank holds, under names of the whole model."""

    place: Place
    file: TorchFile
    values: Mapping[str, Any]
    draft: Draft = field(default_factory=Draft)
    groups: list[list[Options]] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)


def _rank(
    directory: ClassicDirectory, run: Run, number: tuple[int, ...], file: TorchFile, tree: Mapping[Any, Any]
) -> _Rank:
    if not all(type(key) is str for key in tree):
        raise refused("a name in the file is not a string", file.name)
    place = run.place(number)
    rank = _Rank(
        place, file, {key: value for key, value in tree.items() if key not in _OWN and not run.is_model(key)}
    )
    parameters = []
    for chunk, key in enumerate(run.chunks(tree)):
        module = mapping(member(tree, key, file.name), key, file.name)
        before = run.layers_before(place.pp, chunk, layer_counts(map(str, module)))
        for local, stored in module.items():
            if not isinstance(stored, StoredTensor):
                if stored is not None:
                    rank.rest[f"{key}/{local}"] = stored
                continue
            name = whole_name(str(local), before, place.ep, run.local_experts)
            if name == _OUTPUT and run.is_tied:
                rank.draft.aliases[_EMBEDDING] = [_OUTPUT]
                name = _EMBEDDING
            if name in rank.draft.slots:
                raise refused(f"{name!r} is there twice", file.name)
            rank.draft.add(name, "value", stored.dtype, stored.shape, Whole(file, stored))
            shared = run.is_tied and run.pp > 1 and name == _EMBEDDING
            parameters.append(LocalParameter(name, stored, is_expert(name), shared))
    if "optimizer" in tree:
        _add_optimizer(directory, run, number, rank, parameters, tree["optimizer"])
    return rank


def _add_optimizer(
    directory: ClassicDirectory,
    run: Run,
    number: tuple[int, ...],
    rank: _Rank,
    parameters: Sequence[LocalParameter],
    tree: object,
) -> None:
    """Add the states of one optimizer, or of those that are chained: one for experts' parameters."""
    at = rank.file.name
    chained = tree if isinstance(tree, list) else [tree]
    stored: Sequence[Any] = [None] * len(chained)
    file = rank.file
    if number in directory.optimizers:
        file = TorchFile(directory.files, f"{directory.ranks[number]}/{OPTIMIZER}", _GLOBALS)
        stored = file.tree if isinstance(file.tree, list) else [file.tree]
        if len(stored) != len(chained):
            raise refused(f"{len(stored)} optimizers, in {at} there are {len(chained)}", file.name)
    for place, (one, buffers) in enumerate(zip(chained, stored, strict=True)):
        inner = mapping(one, "optimizer", at)
        state = inner.get("optimizer", inner)
        groups = groups_of(mapping(state, "optimizer", at), at)
        experts = any(group.get("is_expert_parallel") is True for group in groups)
        mine = [item for item in parameters if len(chained) == 1 or item.is_expert == experts]
        rank.groups.append(options_of(groups, mine, at))
        rank.rest |= {
            f"optimizer/{place}/{key}": value
            for key, value in inner.items()
            if key not in ("optimizer", "state", "param_groups", "fp32_from_fp16_params")
        }
        if "state" in mapping(state, "optimizer", at):
            slots = numbered_states(inner, rank.file, mine)
        elif isinstance(buffers, Mapping):
            slots = bucketed_states(buffers, file, mine, run.bucket_sizes, run.dp)
        elif run.ep > 1 and rank.place.ep and number in directory.optimizers:
            continue  # the first expert-parallel rank has it
        else:
            raise error(
                "UCP-E-SOURCE",
                "the file of the distributed optimizer is missing",
                at=f"{directory_name(number)}/{OPTIMIZER}",
            )
        for name, slot, source in slots:
            _add_state(rank.draft, name, slot, source, file.name)


def _add_state(draft: Draft, name: str, slot: str, source: Whole | float, at: str) -> None:
    if isinstance(source, float):
        draft.add(name, slot, "float64", (), _Number(source))
        return
    stored = source.stored
    if slot == "master":
        value = draft.slots[name]["value"]
        known = draft.sources[name, "value"]
        if stored.dtype == value.dtype:
            draft.sources[name, "value"] = EqualSources(known, source, name, at)
            return
        rounded = CastSource(source, dtype(stored.dtype).numpy)
        draft.sources[name, "value"] = AgreeingSources(known, rounded, name, at)
    draft.add(name, slot, stored.dtype, stored.shape, source)


@dataclass(frozen=True, slots=True)
class _Number:
    """A 0-d slot with a number."""

    number: float

    def __call__(self, box: Any, out: Any) -> None:
        """Fill ``out``."""
        out[...] = self.number


def _merged(group: Sequence[_Rank], run: Run, settings: Mapping[str, str]) -> Draft:
    """Return one draft of all tensor-parallel ranks of a stage."""
    first, at = group[0].draft, group[0].file.name
    if len(group) == 1:
        return first
    chosen = {"patterns": _PATTERNS, "pattern_parameters": run.pattern_parameters, **settings}
    if "patterns" in settings and "pattern_parameters" not in settings:
        del chosen["pattern_parameters"]
    patterns = ShardPatterns.of_settings(chosen, len(group), list(first.slots))
    merged = Draft(aliases=first.aliases)
    for other in group[1:]:
        if other.draft.sources.keys() != first.sources.keys():
            raise refused(f"other parameters or states than in {at}: from two saves", other.file.name)
    for (atom, slot), source in first.sources.items():
        specs = [rank.draft.slots[atom][slot] for rank in group]
        if any(spec.dtype != specs[0].dtype for spec in specs):
            raise refused(f"{atom!r} has another data type on another rank", group[-1].file.name)
        reads: list[ReadBox] = [rank.draft.sources[atom, slot] for rank in group]
        held = None
        if patterns is not None and (specs[0].shape or slot == "value"):
            held = patterns.lowering(atom, slot, [spec.shape for spec in specs], at)
        if held is not None:
            merged.add(
                atom, slot, specs[0].dtype, held.shape, shard_source(held, reads, f"{atom}/{slot}", at)
            )
            continue
        if any(spec.shape != specs[0].shape for spec in specs):
            raise refused(f"{atom!r} has another shape on another rank", group[-1].file.name)
        read: ReadBox = source
        for copy, rank in zip(reads[1:], group[1:], strict=True):
            read = EqualSources(read, copy, f"{atom}/{slot}", rank.file.name)
        merged.add(atom, slot, specs[0].dtype, specs[0].shape, read)
    return merged


def _state(ranks: Sequence[_Rank], run: Run) -> StateDocument:
    """Return values of the first rank, those of others where they differ, and the parameter groups."""
    values: dict[str, JsonValue] = {}
    for rank in ranks:
        for key, value in {**rank.values, **rank.rest}.items():
            encoded = _encoded(rank.file, key, value)
            if rank is ranks[0]:
                values[key] = encoded
            elif values.get(key) != encoded:
                values[f"{directory_name(rank.place.number)}/{key}"] = encoded
    return StateDocument(
        values, dict(_optimizers(ranks)), {}, {SOURCE: {"kind": FORMAT, "degrees": run.degrees()}}
    )


def _optimizers(ranks: Sequence[_Rank]) -> Iterator[tuple[str, Optimizer]]:
    """Yield one of each that is chained; ranks have the same groups, with parameters of their own."""
    count = max((len(rank.groups) for rank in ranks), default=0)
    for place in range(count):
        listed: list[tuple[dict[str, None], Mapping[str, Any]]] = []
        for rank in ranks:
            if len(rank.groups) != count:
                raise refused("other optimizers than the first rank", rank.file.name)
            for number, (names, options) in enumerate(rank.groups[place]):
                if number == len(listed):
                    listed.append(({}, options))
                elif spelled(_plain(listed[number][1])) != spelled(_plain(options)):
                    raise refused("other hyper-parameters than another rank: from two saves", rank.file.name)
                listed[number][0].update(dict.fromkeys(names))
        at = ranks[0].file
        groups = tuple(
            ParameterGroup(tuple(names), {key: _encoded(at, key, value) for key, value in options.items()})
            for names, options in listed
        )
        yield "optim" if count == 1 else f"optim_{place}", Optimizer(groups)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if not isinstance(value, StoredTensor | Instance)}


def _encoded(file: TorchFile, key: str, value: object) -> JsonValue:
    try:
        return encode(file.plain(value), at=key)
    except UcpError as refusal:
        raise error(refusal.code, f"{key!r}: {refusal.message}", at=file.name) from refusal
