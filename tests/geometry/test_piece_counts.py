"""Piece counts follow the structure of blocks and not the size of tensors, for every primitive."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import get_args

import pytest

from tests.geometry.test_transfer import mesh
from ucpformat.geometry import (
    BlockRule,
    Blocks,
    BufferPlace,
    Concat,
    Exchange,
    Flatten,
    Join,
    Layout,
    LocalOnly,
    Lowering,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Partial,
    Permute,
    RaggedAxis,
    Scale,
    Shard,
    Step,
    View,
    lower,
    traffic,
)

GRID = mesh(dp=4, tp=2)
RAGGED = Mesh((MeshAxis("pp", 2), RaggedAxis("tp", "pp", (4, 2))))
Made = Callable[[int], Lowering]


def on(grid: Mesh, steps: Callable[[int], tuple[Step, ...]], *, buffer: bool = False) -> Made:
    """Steps on a tensor of 24 k x 24 k elements, given k."""

    def made(k: int) -> Lowering:
        shape = (24 * k, 24 * k)
        place = BufferPlace((12 * k,), (384 * k * k,)) if buffer else None
        return lower(Layout(grid, steps(k)), shape, place=place)

    return made


def flat_sizes(k: int) -> tuple[int, ...]:
    """Cuts in the middle of a row, at the same parts of the tensor whatever ``k``."""
    return (72 * k * k + 12 * k, 96 * k * k, 48 * k * k, 72 * k * k - 12 * k)


TP = Shard("tp", 0)
DP = Shard("dp", 0)
PRIMITIVES: dict[str, Made] = {
    "shard ceil": on(GRID, lambda k: (Shard("tp", 0, "ceil"), Shard("dp", 1, "ceil"))),
    "shard even": on(GRID, lambda k: (Shard("tp", 0, "even"),)),
    "shard balanced": on(GRID, lambda k: (Shard("dp", 1, "balanced"),)),
    "shard sizes": on(GRID, lambda k: (Shard("dp", 0, (5 * k, 0, 7 * k, 12 * k)),)),
    "shard ragged": on(RAGGED, lambda k: (Shard("pp", 1), TP)),
    "blocks sizes": on(GRID, lambda k: (Blocks(0, (16 * k, 6 * k, 2 * k)), TP)),
    "blocks rule": on(GRID, lambda k: (Blocks(0, BlockRule("even", 6)), TP, Join(0), DP)),
    "blocks own steps": on(GRID, lambda k: (Blocks(0, (16 * k, 8 * k), (None, (DP,))), TP)),
    "blocks kept whole": on(GRID, lambda k: (Blocks(0, (16 * k, 8 * k), (None, ())), TP)),
    "join": on(GRID, lambda k: (Blocks(0, (8 * k, 16 * k)), TP, Join(0), DP)),
    "only": on(GRID, lambda k: (Only("dp", (1, 3)), TP)),
    "view": on(GRID, lambda k: (View((4, 6 * k, 24 * k)), Shard("tp", 1))),
    "permute": on(GRID, lambda k: (View((4, 6 * k, 24 * k)), Permute((1, 0, 2)), Shard("tp", 1))),
    "pad to": on(GRID, lambda k: (Pad(0, to=32 * k), TP, DP)),
    "pad multiple": on(GRID, lambda k: (Pad(1, multiple=32 * k), Shard("dp", 1, "even"))),
    "flatten": on(GRID, lambda k: (TP, Flatten(), Shard("dp", 0, flat_sizes(k)))),
    "concat": on(GRID, lambda k: (TP, Flatten(), Concat("g"), Shard("dp", 0, "even")), buffer=True),
    "partial": on(GRID, lambda k: (TP, Partial("dp", "sum"))),
    "scale": on(GRID, lambda k: (TP, Scale(Fraction(1, 2)))),
}


def counts(lowering: Lowering) -> list[int]:
    """How many pieces each region has."""
    return [len(region.local_map.pieces) for region in lowering.regions()]


def test_every_primitive_is_here() -> None:
    used = {type(step) for made in PRIMITIVES.values() for step in made(1).layout.steps}
    assert used == set(get_args(Step)) - {LocalOnly}


@pytest.mark.parametrize("made", PRIMITIVES.values(), ids=PRIMITIVES)
def test_pieces_do_not_follow_extents(made: Made) -> None:
    small = counts(made(2))
    assert sum(small) > 0
    for k in (3, 64, 10_000, 1 << 20):
        assert counts(made(k)) == small


def copies(exchange: Exchange) -> dict[int, tuple[int, int]]:
    """How many copies each rank keeps and receives; who of several sends them goes by sizes."""
    return {rank: (found.kept.copies, found.received.copies) for rank, found in traffic(exchange).items()}


@pytest.mark.parametrize("after", PRIMITIVES.values(), ids=PRIMITIVES)
def test_copies_do_not_follow_extents(after: Made) -> None:
    """Those of a plan neither, from every primitive to every other."""
    for before in PRIMITIVES.values():
        if after(2).reduce is not None:
            continue
        small = Exchange(before(16), after(16))
        large = Exchange(before(1 << 20), after(1 << 20))
        assert copies(small) == copies(large)


def test_entries_of_their_own_have_one_piece_each() -> None:
    for extent in (1, 1 << 30):
        assert counts(lower(Layout(GRID, (LocalOnly(),)), (8, extent))) == [1] * 8
