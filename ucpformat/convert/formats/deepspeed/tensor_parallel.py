"""Tensor-parallel ranks made one: what each rank's files hold, merged by the affine maps that AutoTP saves.

A slot without a map must be the same on all ranks, bit by bit: a tensor that is split and not described is refused,
where DeepSpeed's converter takes it to be split along dim 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.convert.contract.draft import Draft
from ucpformat.convert.contract.shard_patterns import ShardPatterns
from ucpformat.convert.contract.sources import EqualSources, ReadBox, read_only_to_check, window
from ucpformat.convert.formats.deepspeed.affine import AffineHoldings, affine_holdings
from ucpformat.convert.formats.deepspeed.states import ModelStates
from ucpformat.errors import error
from ucpformat.geometry import Box, BoxIndex, Holdings, Piece
from ucpformat.tensor_files.fields import mapping, refused

__all__ = ["affine_maps", "check_shards", "merged_draft", "shard_source"]

_INFO: Final = "universal_checkpoint_info"
_MAP_VERSION: Final = 1


def merged_draft(
    drafts: Sequence[Draft], models: Sequence[ModelStates], patterns: ShardPatterns | None = None
) -> Draft:
    """One draft of those of all tensor-parallel ranks, in their order; ``patterns`` are for what has no affine map.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where ranks have other slots, or shapes that no map explains;
            ``UCP-E-LAYOUT`` and ``UCP-E-COVER`` for a map that is malformed.
    """
    first, at = drafts[0], models[0].file.name
    maps = affine_maps(models[0])
    merged = Draft(aliases=first.aliases, roles=first.roles, lost=first.lost)
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


def affine_maps(model: ModelStates) -> dict[str, AffineHoldings]:
    """The affine maps by parameter: their patterns are names, escaped, and no expression is evaluated."""
    at = model.file.name
    info = model.values.get(_INFO)
    affine = info.get("affine_map") if isinstance(info, dict) else None
    if affine is None:
        return {}
    affine = mapping(affine, "affine_map", at)
    if affine.get("version") != _MAP_VERSION:
        raise refused(f"affine maps of version {affine.get('version')!r:.20} are unknown", at)
    listed: Mapping[str, Any] = mapping(affine.get("params"), "affine_map", at)
    found: dict[str, AffineHoldings] = {}
    for name in model.module:
        entry = listed.get(f"^{re.escape(name)}$")
        if entry is not None:
            found[name] = affine_holdings(mapping(entry, "an affine map", at), at=f"{at}#{name}")
            if found[name].scale != 1:
                raise refused(f"{name!r} is held scaled, which is not read", at)
    unused = set(listed) - {f"^{re.escape(name)}$" for name in found}
    if unused:
        raise refused(f"the affine map {min(unused)!r:.100} is of no parameter here", at)
    return found


def check_shards(held: Holdings, shapes: Sequence[tuple[int, ...]], atom: str, at: str) -> None:
    """Refuse shards that are not of the shapes that a map gives them."""
    wanted = {rank: region.local_map.shape for region in held.regions() for rank in region.holders}
    if wanted != dict(enumerate(shapes)):
        raise refused(f"the shards of {atom!r} have shapes {list(shapes)}, its affine map says {wanted}", at)


@dataclass(frozen=True, slots=True)
class _Shard:
    """A piece of the parameter, and a reader of the shard it lies in."""

    piece: Piece
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    read: ReadBox


class _Shards:
    """A parameter of which the shards of several ranks are read."""

    def __init__(self, shards: Sequence[_Shard]) -> None:
        self._shards = shards
        self._index = BoxIndex([shard.piece.box for shard in shards])

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, with a box."""
        for place in self._index.overlapping(box):
            shard = self._shards[place]
            piece = shard.piece.clip(box)
            if piece is None:
                continue
            offset = tuple(
                piece.local.offset // stride % extent if stride else 0
                for stride, extent in zip(shard.strides, shard.shape, strict=True)
            )
            part = np.empty(piece.box.shape, out.dtype)
            shard.read(Box(offset, piece.box.shape), part)
            window(out, piece.box.relative_to(box))[...] = part

    def check(self, box: Box, kind: np.dtype[Any]) -> None:
        """Compare a box of ``kind`` that nobody wants: every shard as it compares itself."""
        read_only_to_check(self, box, kind)


def shard_source(held: Holdings, reads: Sequence[ReadBox], name: str, at: str) -> ReadBox:
    """A reader of the whole parameter; where several ranks hold a region, their copies must be equal."""
    shards = []
    for region in held.filled():
        read = reads[region.holders[0]]
        for other in region.holders[1:]:
            read = EqualSources(read, reads[other], name, at)
        shape = region.local_map.shape
        strides = _dense(shape)
        for piece in region.local_map.pieces:
            if len(shape) != piece.box.ndim or any(
                step not in (0, stride) for step, stride in zip(piece.local.strides, strides, strict=True)
            ):
                raise error(
                    "UCP-E-SOURCE", f"{name!r}: the affine map reorders elements within a shard", at=at
                )
            shards.append(_Shard(piece, strides, shape, read))
    return _Shards(shards)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)
