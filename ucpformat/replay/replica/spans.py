"""The steps whose state replicas can give."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Span", "common_step"]


class Span(NamedTuple):
    """Steps whose state a replica has, or can make: ``last`` is one step ahead where it holds that back."""

    first: int
    last: int


def common_step(spans: list[Span]) -> int | None:
    """Return the newest step that all replicas can have, None where there is none.

    A step of training is made by all ranks together, so that one of them is at most one step ahead of another.

    >>> common_step([Span(4, 5), Span(5, 6)]), common_step([Span(4, 5), Span(6, 7)])
    (5, None)
    """
    step = min(span.last for span in spans)
    return step if max(span.first for span in spans) <= step else None
