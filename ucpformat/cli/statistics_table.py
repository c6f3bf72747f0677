"""The table of ``ucp inspect --stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ucpformat.cli.report import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ucpformat.inspection.statistics import SlotStatistics

__all__ = ["lines_of_statistics", "magnitudes"]

_COLUMNS: Final = ("tensor", "NaN", "Inf", "zeros", "min", "max", "mean", "norm", "magnitudes")
_STEPS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_STEPS: Final = ".:-=+*#@"
_BARS: Final = 16


def lines_of_statistics(
    found: Sequence[tuple[str, SlotStatistics]], width: int | None = None, *, has_blocks: bool = True
) -> Iterator[str]:
    """Yield the table of slots, those with NaN or infinite elements first, and how many of these there are."""
    order = sorted(found, key=lambda one: not (one[1].nan or one[1].inf))
    rows = [
        (
            name,
            f"{one.nan:,}",
            f"{one.inf:,}",
            f"{one.zeros / one.count:.0%}" if one.count else "",
            *(_number(value) for value in (one.minimum, one.maximum, one.mean, one.norm)),
            magnitudes(one.magnitudes, _STEPS if has_blocks else _PLAIN_STEPS),
        )
        for name, one in order
    ]
    yield from table(_COLUMNS, rows, right=frozenset(_COLUMNS[1:-1]), width=width)
    bad = sum(bool(one.nan) for _, one in found), sum(bool(one.inf) for _, one in found)
    what = "tensor" if len(found) == 1 else "tensors"
    yield f"of {len(found):,} {what} {bad[0]:,} have NaN and {bad[1]:,} infinities"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def magnitudes(counts: Mapping[int, int], steps: str) -> str:
    """Draw how many elements have which power of two, from the least to the largest: ``2^-9 ▁▃█▂ 2^2``.

    >>> magnitudes({-1: 1, 0: 8, 1: 3}, ".:-=+*#@")
    '2^-1 .@- 2^2'
    """
    if not counts:
        return ""
    low, high = min(counts), max(counts) + 1
    width = -(-(high - low) // _BARS)
    sums = [
        sum(counts.get(low + bar + one, 0) for one in range(width)) for bar in range(0, high - low, width)
    ]
    most = max(sums)
    drawn = "".join(" " if not one else steps[-(-one * len(steps) // most) - 1] for one in sums)
    return f"2^{low} {drawn} 2^{high}"
