"""The flat groups of ZeRO: which part of which file holds which box of a parameter's master copy and states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ucpformat.conversion.contract.sources import Pieces, StoredPiece
from ucpformat.conversion.formats.deepspeed.files.states import OptimizerStates, Shapes
from ucpformat.conversion.formats.deepspeed.zero.layouts import (
    ALIGNMENT_FACTOR,
    Placed,
    partition_places,
    shared_places,
    zero_mesh,
)
from ucpformat.geometry import lower
from ucpformat.tensor_files.fields import refused
from ucpformat.tensor_files.object_tree import spelled
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = ["FlatGroup", "Scalar", "Sharers", "flat_groups", "partition_source"]

Scalar = int | float | StoredTensor
Sharers = Callable[[int, Shapes], Iterable[tuple[Sequence[OptimizerStates], Shapes]]]
"""Of a group that so many ranks share: each set of them, and what its parameters are called."""


@dataclass(frozen=True, slots=True)
class FlatGroup:
    """A flat group with the files of all its data-parallel ranks.

    ``states`` are those that have an element for each of the group's, ``scalars`` those that have one value for all.
    ``options`` is the number of its parameter group.
    """

    shapes: Shapes
    options: int
    ranks: Sequence[OptimizerStates]
    masters: Sequence[StoredTensor]
    states: Mapping[str, Sequence[StoredTensor]]
    scalars: Mapping[str, Scalar]
    places: Mapping[str, Placed]
    part_size: int

    def source(self, name: str, held: Sequence[StoredTensor]) -> Pieces:
        """Return parameter ``name`` in ``held``, one flat tensor per rank: `masters`, or the elements of a state."""
        layout, place = self.places[name]
        parts = []
        for region in lower(layout, self.shapes[name], place=place).filled():
            rank = region.holders[0]
            parts += [
                StoredPiece(piece, self.ranks[rank].file, held[rank]) for piece in region.local_map.pieces
            ]
        return Pieces(parts)


def flat_groups(
    ranks: Sequence[OptimizerStates], groups: Sequence[Shapes], at: str, sharers: Sharers | None = None
) -> Iterator[FlatGroup]:
    """Yield every flat group of the ranks of one model-parallel position; ``groups`` are the names that ``at`` lists.

    ``sharers`` tells which ranks share a group, where not all do; there are as many flat groups then as it has sets.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, where a rank contradicts another or what is listed.
    """
    first = ranks[0]
    if len(groups) != len(first.masters):
        raise refused(f"{len(first.masters)} flat groups, but {at} lists {len(groups)}", first.file.name)
    for other in ranks[1:]:
        _check_alike(first, other)
    options = {number: group for group, numbers in enumerate(first.members) for number in numbers}
    for number, shapes in enumerate(groups):
        for sharing, names in (
            ((ranks, shapes),) if sharers is None else sharers(first.counts[number], shapes)
        ):
            yield _flat_group(number, options[number], sharing, names, at)


def _flat_group(
    number: int, options: int, ranks: Sequence[OptimizerStates], shapes: Shapes, at: str
) -> FlatGroup:
    first = ranks[0]
    if first.counts[number] != len(ranks):
        raise refused(
            f"{first.counts[number]} ranks share flat group {number}, and there are files of {len(ranks)}; "
            "copy the files of all ranks into one directory",
            first.file.name,
        )
    placed, part_size = _placed(first, shapes, number, len(ranks), at)
    # DeepSpeed takes the padding of the tail off ZeRO-1's and ZeRO-2's masters, and leaves it on BF16_Optimizer's;
    # off states under elastic_checkpoint alone.
    shortest = [
        part_size if first.stage == 3 else _used(placed, shapes, part_size, rank)
        for rank in range(len(ranks))
    ]
    states, scalars = _states(ranks, number, part_size, shortest)
    masters = [rank.masters[number] for rank in ranks]
    for states_file, master, least in zip(ranks, masters, shortest, strict=True):
        if len(master.shape) != 1 or master.shape[0] not in (part_size, least):
            raise refused(
                f"flat group {number} has shape {list(master.shape)}, and {part_size} elements are expected",
                states_file.file.name,
            )
    places = dict(zip(shapes, placed, strict=True))
    return FlatGroup(shapes, options, ranks, masters, states, scalars, places, part_size)


def _placed(
    first: OptimizerStates, shapes: Shapes, number: int, degree: int, at: str
) -> tuple[Sequence[Placed], int]:
    mesh = zero_mesh(degree)
    extents = list(shapes.values())
    if first.stage == 3:
        placed = partition_places(mesh, extents, group=f"sub_group/{number}")
        return placed, placed[0][1].totals[0] if placed else 0
    gaps = None if first.gaps is None else first.gaps[number]
    if gaps is not None and len(gaps) != len(extents):
        raise refused(f"{len(gaps)} paddings for the {len(extents)} tensors that {at} lists", first.file.name)
    placed = shared_places(
        mesh, extents, group=f"group/{number}", paddings=gaps, alignment=ALIGNMENT_FACTOR * degree
    )
    return placed, placed[0][1].totals[0] // degree if placed else 0


def _used(placed: Sequence[Placed], shapes: Shapes, part_size: int, rank: int) -> int:
    """Return elements of a rank's part before the padding of the tail."""
    ends = (
        place.offsets[0] + math.prod(shape) for (_, place), shape in zip(placed, shapes.values(), strict=True)
    )
    end = max(ends, default=0)
    return max(0, min(part_size, end - rank * part_size))


def _check_alike(first: OptimizerStates, other: OptimizerStates) -> None:
    at = other.file.name
    if other.stage != first.stage or list(other.counts) != list(first.counts):
        raise refused(f"another ZeRO stage or degree than {first.file.name}: from two saves", at)
    if other.members != first.members or len(other.masters) != len(first.masters):
        raise refused(f"other parameter groups than {first.file.name}: from two saves", at)
    if spelled(other.options) != spelled(first.options) or other.gaps != first.gaps:
        raise refused(f"other hyper-parameters than {first.file.name}: from two saves", at)


def _states(
    ranks: Sequence[OptimizerStates], number: int, part_size: int, shortest: Sequence[int]
) -> tuple[dict[str, list[StoredTensor]], dict[str, Scalar]]:
    names = _names(ranks[0].states[number])
    for rank in ranks:
        if _names(rank.states[number]) != names:
            raise refused(
                f"flat group {number} has other optimizer states than in {ranks[0].file.name}", rank.file.name
            )
    states: dict[str, list[StoredTensor]] = {}
    scalars: dict[str, Scalar] = {}
    for name in names:
        held = [rank.states[number][name] for rank in ranks]
        if all(
            isinstance(item, StoredTensor) and item.shape in ((part_size,), (least,))
            for item, least in zip(held, shortest, strict=True)
        ):
            states[name] = held
            continue
        kinds = {type(item) for item in held}
        if kinds in ({int}, {float}):
            entries = set(held)
        elif kinds == {StoredTensor} and all(item.shape == () for item in held):
            entries = {rank.file.array(item) for rank, item in zip(ranks, held, strict=True)}
        else:
            raise refused(
                f"state {name!r} of flat group {number} is neither a number nor a flat tensor of {part_size} elements",
                ranks[0].file.name,
            )
        if len(entries) > 1:
            odd = next(
                rank
                for rank, item in zip(ranks, held, strict=True)
                if _differs(rank.file, item, ranks[0], held[0])
            )
            raise refused(
                f"state {name!r} of flat group {number} is another than in {ranks[0].file.name}: from two saves",
                odd.file.name,
            )
        scalars[name] = held[0]
    return states, scalars


def _differs(file: TorchFile, item: object, first: OptimizerStates, other: object) -> bool:
    if isinstance(item, StoredTensor) and isinstance(other, StoredTensor):
        return file.array(item) != first.file.array(other)
    return item != other


def _names(states: Mapping[str, object]) -> list[str]:
    """Return names of the states that are there; None stands for one that is not (SGD without momentum)."""
    return sorted(str(name) for name, value in states.items() if value is not None)


def partition_source(shape: tuple[int, ...], held: Sequence[tuple[TorchFile, StoredTensor]]) -> Pieces:
    """Return a tensor that ZeRO-3 split alone, one part of ``ceil(numel / degree)`` elements per rank.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for a part of another length.
    """
    degree = len(held)
    ((layout, place),) = partition_places(zero_mesh(degree), [shape], group="partition")
    lowering = lower(layout, shape, place=place)
    parts = []
    for rank, (file, stored) in enumerate(held):
        if math.prod(stored.shape) != place.totals[0]:
            raise refused(
                f"a part of {math.prod(stored.shape)} elements, and {place.totals[0]} are expected", file.name
            )
        local = lowering.at((rank,))
        parts += [StoredPiece(piece, file, stored) for piece in (() if local is None else local.pieces)]
    return Pieces(parts)
