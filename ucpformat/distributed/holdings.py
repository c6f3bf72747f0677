"""Who holds what of a slot, as ranks describe it, for planning (SPEC section 17.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ucpformat.errors import error
from ucpformat.geometry import (
    Box,
    ExplicitHoldings,
    Holdings,
    LocalMap,
    Lowering,
    Piece,
    Strided,
    lower,
    row_major_strides,
    seen_in,
)

if TYPE_CHECKING:
    from ucpformat.distributed.description import Source

__all__ = ["is_whole", "map_of", "plain_holdings", "united"]


def plain_holdings(source: Source, shape: tuple[int, ...], *, at: str) -> Holdings:
    """What the ranks of a source hold as it is to be stored.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for a layout with a factor or a pending reduction, and as `lower`.
    """
    if source.layout is None:
        whole = LocalMap(shape, (Piece(Box.whole(shape), Strided(0, row_major_strides(shape))),))
        return ExplicitHoldings(shape, tuple((rank, whole) for rank in sorted(source.ranks)))
    lowering = lower(source.layout, shape, place=source.place)
    if lowering.reduce is not None or lowering.scale != 1:
        message = (
            "a pending reduction or a factor is resolved before it is saved; redistribute the tensor first"
        )
        raise error("UCP-E-LAYOUT", message, at=at)
    return lowering


def map_of(holdings: Holdings, rank: int) -> LocalMap | None:
    """What one rank holds; of a layout, without a look at what others do."""
    if isinstance(holdings, Lowering):
        coordinate = holdings.layout.mesh.find(rank)
        return None if coordinate is None else holdings.at(coordinate)
    return next((region.local_map for region in holdings.regions() if rank in region.holders), None)


def is_whole(source: Source, lowering: Lowering) -> bool:
    """Whether all ranks that hold something by the layout of a source are among its ranks."""
    mesh = lowering.layout.mesh
    if source.ranks.issuperset(mesh.rank_at(position) for position in range(mesh.size)):
        return True
    return all(source.ranks.issuperset(region.holders) for region in lowering.regions())


def united(sources: Sequence[Source], shape: tuple[int, ...], *, at: str) -> Holdings:
    """What ranks hold that say so in several ways; of a layout, only what is held by ranks that say it.

    Raises:
        LayoutError: as `plain_holdings`; ``UCP-E-LAYOUT`` for entries of each coordinate's own.
    """
    maps: dict[int, LocalMap] = {}
    for source in sources:
        holdings = plain_holdings(source, shape, at=at)
        if holdings.own_axes is not None:
            message = (
                "entries that belong to each rank go together: all ranks of their mesh have to list them"
            )
            raise error("UCP-E-LAYOUT", message, at=at)
        maps.update(_maps(holdings, source.ranks))
    return ExplicitHoldings(shape, tuple(sorted(maps.items())))


def _maps(holdings: Holdings, ranks: frozenset[int]) -> Iterable[tuple[int, LocalMap]]:
    for region in holdings.regions():
        local_map = region.local_map
        seen = LocalMap(local_map.shape, seen_in(local_map.pieces, holdings.view, holdings.shape))
        yield from ((rank, seen) for rank in region.holders if rank in ranks)
