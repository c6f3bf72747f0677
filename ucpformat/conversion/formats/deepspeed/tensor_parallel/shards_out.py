"""What each tensor-parallel rank would have of a checkpoint, as content of its own (see `tensor_parallel`).

Which part is whose is what patterns say of a whole tensor of its shape (SPEC-PATTERNS), or the affine maps that the
checkpoint was saved with. What neither splits, all ranks have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.contract.job import ReadBox, SlotSource
from ucpformat.conversion.contract.shard_patterns import ShardPatterns
from ucpformat.conversion.contract.sources import window
from ucpformat.conversion.formats.deepspeed.outlines import Outline
from ucpformat.conversion.formats.deepspeed.tensor_parallel.affine import affine_description, affine_holdings
from ucpformat.errors import error
from ucpformat.geometry import Box, BoxIndex, Holdings, LocalMap
from ucpformat.tensor_files.byte_source import contiguous_strides
from ucpformat.tensor_files.fields import mapping

if TYPE_CHECKING:
    from ucpformat.conversion.formats.deepspeed.export_settings import DeepSpeedSettings

__all__ = ["shards_of"]

_INFO: Final = "universal_checkpoint_info"
_WEIGHTS: Final = ("value", "master")


def shards_of(
    content: Content, chosen: DeepSpeedSettings, settings: Mapping[str, str]
) -> Iterator[tuple[Content, Mapping[str, Any]]]:
    """Yield the content of each tensor-parallel rank, and values that only hold for shards.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` where nothing says how tensors are split among so many ranks, and for what is
            not written with it: pipelines, experts, ZeRO-3.
        UcpError: what resolving patterns raises.
    """
    degree = chosen.tensor_degree
    if degree == 1:
        yield content, {}
        return
    if chosen.pipeline or chosen.stage == 3:
        raise error(
            "UCP-E-MISMATCH",
            "tensor-parallel shards are written for plain modules under ZeRO-0 to 2; set stage=1 and pipeline= (empty)",
        )
    outline = Outline(content)
    info = outline.values.get(_INFO)
    held = _holdings(content, settings, degree, info if isinstance(info, dict) else {})
    ranks = [
        {key: _local_map(holdings, rank, key[0]) for key, holdings in held.items()} for rank in range(degree)
    ]
    maps = {
        f"^{re.escape(atom)}$": affine_description(holdings)
        for (atom, slot), holdings in held.items()
        if slot == "value"
    }
    own = {
        **(info if isinstance(info, dict) else {}),
        "universal_checkpoint_version": 0.4,
        "affine_map": {"version": 1, "params": maps},
    }
    for local in ranks:
        job = content.job
        atoms = [
            replace(
                atom,
                slots={
                    name: replace(slot, shape=local[atom.name, name].shape, layout=None, place=None)
                    if (atom.name, name) in local
                    else replace(slot, layout=None, place=None)
                    for name, slot in atom.slots.items()
                },
            )
            for atom in job.atoms
        ]
        sources = [
            SlotSource(source.atom, source.slot, _Shard(local[source.atom, source.slot], source.read))
            if (source.atom, source.slot) in local
            else source
            for source in job.sources
        ]
        yield Content(replace(job, atoms=atoms, sources=sources)), {_INFO: own}


def _holdings(
    content: Content, settings: Mapping[str, str], degree: int, info: Mapping[str, Any]
) -> dict[tuple[str, str], Holdings]:
    """Return who holds what of every slot that is split."""
    patterns = ShardPatterns.of_settings(settings, degree, list(content))
    affine = info.get("affine_map")
    listed = mapping(affine.get("params"), "affine_map", _INFO) if isinstance(affine, dict) else {}
    if patterns is None and not listed:
        raise error(
            "UCP-E-MISMATCH",
            f"nothing says how tensors are split among {degree} ranks; set patterns=NAME or FILE",
        )
    by_slot: dict[tuple[str, str], Holdings] = {}
    for atom, view in content.items():
        entry = listed.get(f"^{re.escape(atom)}$")
        for slot, held in view.items():
            if held.shape == () and slot not in _WEIGHTS:
                continue
            holdings: Holdings | None = None
            if patterns is not None:
                holdings = patterns.of_whole(atom, slot, held.shape)
            elif entry is not None:
                holdings = affine_holdings(mapping(entry, "an affine map", atom), at=atom)
                ranks = {rank for region in holdings.regions() for rank in region.holders}
                if ranks != set(range(degree)) or holdings.shape != held.shape:
                    raise error(
                        "UCP-E-MISMATCH",
                        f"{atom!r} was saved by {len(ranks)} tensor-parallel ranks; set patterns= for {degree}",
                    )
            if holdings is not None:
                by_slot[atom, slot] = holdings
    return by_slot


def _local_map(held: Holdings, rank: int, atom: str) -> LocalMap:
    local_map = next((region.local_map for region in held.regions() if rank in region.holders), None)
    if (
        local_map is None
        or held.view != held.shape
        or local_map.mapped != local_map.size
        or held.reduce is not None
    ):
        raise error(
            "UCP-E-MISMATCH",
            f"the part of {atom!r} that tensor-parallel rank {rank} would have is none, is padded, or is not cut "
            "along the dims of the tensor; set other patterns=",
        )
    if held.scale != 1:
        raise error("UCP-E-MISMATCH", f"{atom!r} would be held scaled, which is not written")
    for piece in local_map.pieces:
        if len(local_map.shape) != piece.box.ndim or any(
            step not in (0, stride)
            for step, stride in zip(piece.local.strides, contiguous_strides(local_map.shape), strict=True)
        ):
            raise error(
                "UCP-E-MISMATCH", f"the elements of {atom!r} would be in another order within a shard"
            )
    return local_map


@dataclass(frozen=True, slots=True)
class _MovedBox:
    """Boxes of equal shape: in the shard, and in the whole tensor."""

    local: Box
    whole: Box


class _Shard:
    """A rank's shard of a tensor, read from the whole."""

    def __init__(self, held: LocalMap, read: ReadBox) -> None:
        self._read = read
        strides = contiguous_strides(held.shape)
        self._parts = [
            _MovedBox(
                Box(
                    tuple(
                        piece.local.offset // stride % extent if extent else 0
                        for stride, extent in zip(strides, held.shape, strict=True)
                    ),
                    piece.box.shape,
                ),
                piece.box,
            )
            for piece in held.pieces
        ]
        self._index = BoxIndex([part.local for part in self._parts])

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, with a box of the shard."""
        for place in self._index.overlapping(box):
            part = self._parts[place]
            common = part.local.intersect(box)
            if common is None:
                continue
            inner = common.relative_to(part.local)
            start = tuple(a + b for a, b in zip(part.whole.offset, inner.offset, strict=True))
            elements = np.empty(common.shape, out.dtype)
            self._read(Box(start, common.shape), elements)
            window(out, common.relative_to(box))[...] = elements
