"""What ranks hold in the words of ``CheckpointableTensor``, which torch asks of a local tensor: both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ucpformat.errors import error
from ucpformat.geometry import ExplicitHoldings, LocalMap, row_major_strides
from ucpformat.state_dict.tensors.torch_layouts import boxes_of


@dataclass(frozen=True, slots=True)
class BoxedTensor:
    """What ``CheckpointableTensor`` says of a local tensor: ``local_sizes[i]`` elements from each offset on."""

    global_shape: tuple[int, ...]
    global_offsets: tuple[tuple[int, ...], ...]
    local_offsets: tuple[tuple[int, ...], ...]
    local_sizes: tuple[tuple[int, ...], ...]


def boxed_holdings(tensors: Mapping[int, Any]) -> ExplicitHoldings:
    """Return what ranks hold of one tensor, from the ``CheckpointableTensor`` of each.

    Raises:
        LayoutError: as `boxes_of`; and ``UCP-E-LAYOUT`` where the ranks disagree on the global shape.
    """
    found = {rank: boxes_of(tensor) for rank, tensor in sorted(tensors.items())}
    shapes = {shape for shape, _ in found.values()}
    if len(shapes) != 1:
        raise error("UCP-E-LAYOUT", f"the ranks say different global shapes: {sorted(shapes)}")
    return ExplicitHoldings(shapes.pop(), tuple((rank, local_map) for rank, (_, local_map) in found.items()))


def box_description(local_map: LocalMap, shape: Sequence[int]) -> BoxedTensor:
    """Return the four attributes for a local tensor that holds what ``local_map`` says of a tensor of ``shape``.

    Boxes lie in the local tensor as they do in the logical one: pieces that do not, those of flattened and
    permuted tensors, have no such description.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for them.
    """
    strides = tuple(max(1, stride) for stride in row_major_strides(local_map.shape))
    insides = []
    for piece in local_map.pieces:
        rest, inside = piece.local.offset, []
        for stride in strides:
            place, rest = divmod(rest, stride)
            inside.append(place)
        straight = len(local_map.shape) == len(piece.box.shape) and all(
            step == stride or extent == 1
            for step, stride, extent in zip(piece.local.strides, strides, piece.box.shape, strict=True)
        )
        if not straight:
            raise error("UCP-E-LAYOUT", f"the piece {piece.box} is no box of the local tensor")
        insides.append(tuple(inside))
    return BoxedTensor(
        tuple(shape),
        tuple(piece.box.offset for piece in local_map.pieces),
        tuple(insides),
        tuple(piece.box.shape for piece in local_map.pieces),
    )
