"""What a DCP directory holds, as data: tensors with their fragments, objects with their locations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ucpformat.errors import error
from ucpformat.geometry import Box, exact_cover
from ucpformat.state_dict.keys.paths import KeyPath
from ucpformat.tensor_files.byte_source import Location

__all__ = ["Catalogue", "DcpObject", "DcpTensor", "Fragment", "KeyPath", "check_covers", "cover_problem"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A box of a tensor and where it is stored: a ``torch.save`` archive, or the raw elements in C order."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    location: Location
    encoding: Literal["torch", "raw"]


@dataclass(frozen=True, slots=True)
class DcpTensor:
    """A tensor: ``dtype`` in Zarr's spelling, ``path`` the planner's, fragments that cover it exactly."""

    key: str
    path: KeyPath | None
    dtype: str
    shape: tuple[int, ...]
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class DcpObject:
    """A pickled object: one location, or one for each rank where the ranks' objects differ."""

    key: str
    path: KeyPath | None
    locations: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All items by key. ``kind`` says how the directory was written.

    ``locations`` are all the ranges that were listed, also those of empty fragments, which tensors leave out.
    ``flattened`` are the shapes of tensors that Megatron-core stored in flattened pieces, under other shapes.
    """

    kind: Literal["dcp", "dcp-per-rank", "hugging-face"]
    tensors: Mapping[str, DcpTensor]
    objects: Mapping[str, DcpObject]
    locations: tuple[Location, ...]
    flattened: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def check_covers(tensors: Mapping[str, DcpTensor], at: str) -> None:
    """Refuse a tensor that its fragments do not cover exactly once: ``UCP-E-SOURCE``, naming the key."""
    for key, tensor in tensors.items():
        problem = cover_problem(tensor.shape, [Box(part.offset, part.shape) for part in tensor.fragments])
        if problem is not None:
            raise error("UCP-E-SOURCE", f"{key!r} is not stored completely: {problem}", at=at)


def cover_problem(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """Say what keeps ``boxes`` from covering ``shape`` exactly once, or return None; empty boxes are ignored."""
    if any(box.ndim != len(shape) for box in boxes):
        return "a piece has another number of dimensions"
    fault = exact_cover(boxes, shape)
    if fault is None:
        return None
    where = f"at {list(fault.box.offset)} of shape {list(fault.box.shape)}"
    if fault.kind == "outside":
        return f"the piece {where} leaves the shape {list(shape)}"
    if fault.kind == "overlap":
        return f"pieces overlap {where}"
    return f"elements are missing {where}"
