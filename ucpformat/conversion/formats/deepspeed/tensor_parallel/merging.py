"""Tensor-parallel ranks made one: what each rank's files hold, merged by the affine maps that AutoTP saves.

A slot without a map must be the same on all ranks, bit by bit: a tensor that is split and not described is refused,
where DeepSpeed's converter takes it to be split along dim 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ucpformat.conversion.contract.job import ReadBox
from ucpformat.conversion.contract.shard_patterns import ShardPatterns
from ucpformat.conversion.contract.sources import EqualSources, shard_source
from ucpformat.conversion.formats.deepspeed.files.model_draft import ModelDraft
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates
from ucpformat.conversion.formats.deepspeed.tensor_parallel.affine import affine_holdings
from ucpformat.geometry import ExplicitHoldings, Holdings
from ucpformat.tensor_files.fields import mapping, refused

__all__ = ["affine_maps", "check_shards", "merged_draft"]

_INFO: Final = "universal_checkpoint_info"
_MAP_VERSION: Final = 1


def merged_draft(
    drafts: Sequence[ModelDraft], models: Sequence[ModelStates], patterns: ShardPatterns | None = None
) -> ModelDraft:
    """Return one draft of all tensor-parallel ranks', in order; ``patterns`` are for what has no affine map.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where ranks have other slots, or shapes that no map explains;
            ``UCP-E-LAYOUT`` and ``UCP-E-COVER`` for a map that is malformed.
    """
    first, at = drafts[0], models[0].file.name
    maps = affine_maps(models[0])
    merged = ModelDraft(aliases=first.aliases, roles=first.roles, lost=first.lost)
    for other, model in zip(drafts[1:], models[1:], strict=True):
        if other.sources.keys() != first.sources.keys() or other.aliases != first.aliases:
            raise refused(f"other parameters or states than in {at}: from two saves", model.file.name)
    for (atom, slot), source in first.sources.items():
        specs = [draft.slots[atom][slot] for draft in drafts]
        reads = [draft.sources[atom, slot] for draft in drafts]
        spec = specs[0]
        if any(other.dtype != spec.dtype for other in specs):
            raise refused(f"{atom!r} has another data type on another rank", models[-1].file.name)
        held: Holdings | None = None
        if spec.shape != () or slot in ("value", "master"):
            held = maps.get(atom)
            if held is None and patterns is not None:
                held = patterns.lowering(atom, slot, [other.shape for other in specs], at)
        if held is None:
            if any(other.shape != spec.shape for other in specs):
                raise refused(
                    f"the ranks have shards of {atom!r} of different shapes, and no affine map says how it is split; "
                    "say it with patterns (--from-set patterns=...)",
                    at,
                )
            read: ReadBox = source
            for copy in reads[1:]:
                read = EqualSources(read, copy, f"{atom}/{slot}", at)
            merged.add(atom, slot, spec.dtype, spec.shape, read, annotations=spec.annotations)
            continue
        check_shards(held, [other.shape for other in specs], atom, at)
        merged.add(atom, slot, spec.dtype, held.shape, shard_source(held, reads, f"{atom}/{slot}", at))
    return merged


def affine_maps(model: ModelStates) -> dict[str, ExplicitHoldings]:
    """Return the affine maps by parameter: their patterns are names, escaped, and no expression is evaluated."""
    at = model.file.name
    info = model.values.get(_INFO)
    affine = info.get("affine_map") if isinstance(info, dict) else None
    if affine is None:
        return {}
    affine = mapping(affine, "affine_map", at)
    if affine.get("version") != _MAP_VERSION:
        raise refused(f"affine maps of version {affine.get('version')!r:.20} are unknown", at)
    listed: Mapping[str, Any] = mapping(affine.get("params"), "affine_map", at)
    maps: dict[str, ExplicitHoldings] = {}
    for name in model.module:
        entry = listed.get(f"^{re.escape(name)}$")
        if entry is not None:
            maps[name] = affine_holdings(mapping(entry, "an affine map", at), at=f"{at}#{name}")
            if maps[name].scale != 1:
                raise refused(f"{name!r} is held scaled, which is not read", at)
    unused = set(listed) - {f"^{re.escape(name)}$" for name in maps}
    if unused:
        raise refused(f"the affine map {min(unused)!r:.100} is of no parameter here", at)
    return maps


def check_shards(held: Holdings, shapes: Sequence[tuple[int, ...]], atom: str, at: str) -> None:
    """Refuse shards that are not of the shapes that a map gives them."""
    wanted = {rank: region.local_map.shape for region in held.regions() for rank in region.holders}
    if wanted != dict(enumerate(shapes)):
        raise refused(f"the shards of {atom!r} have shapes {list(shapes)}, its affine map says {wanted}", at)
