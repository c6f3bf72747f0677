"""Which of the batches that wait are written as one, where a store takes longer for each than training does."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ucpformat.update_log.drafts import BatchDraft

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ENOUGH_BYTES", "joined_drafts", "written_together"]

ENOUGH_BYTES: Final = 1 << 25
"""Bytes of memory that are worth a request at any time, and at which a batch of several ends."""
_MOST_STEPS: Final = 256


def written_together(waiting: Sequence[BatchDraft], number: int, *, is_alone: bool) -> int:
    """Return how many of the batches that wait are written as one; ``number`` were handed over before them.

    Those of a rank that is not alone end where others do as well, although nobody asks when: at the roundest number
    of batches there is. Whoever is behind by less than 2^k batches ends at each multiple of 2^k.
    """
    most, nbytes, steps = 1, waiting[0].nbytes, len(waiting[0].steps)
    for before, one in pairwise(waiting):
        nbytes += one.nbytes
        steps += len(one.steps)
        if before.is_end or nbytes > ENOUGH_BYTES or steps > _MOST_STEPS:
            break
        most += 1
    if is_alone:
        return most
    return max(range(number + 1, number + most + 1), key=lambda end: (end & -end, end)) - number


def joined_drafts(drafts: Sequence[BatchDraft]) -> BatchDraft:
    """Return one batch with the steps of several, in order."""
    last = drafts[-1]
    steps = [step for draft in drafts for step in draft.steps]
    return BatchDraft(drafts[0].first_step, steps, last.values, last.sums, last.options, last.is_end)
