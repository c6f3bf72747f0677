"""What a DCP directory holds, as data: tensors with their fragments, objects with their locations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.state_dict.keys.paths import KeyPath
from ucpformat.tensor_files.byte_source import Location
from ucpformat.tensor_files.cover import cover_problem

__all__ = ["Catalogue", "DcpObject", "DcpTensor", "Fragment", "KeyPath", "check_covers"]


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
