"""Batches that wait are written as one, and ranks that ask nobody end with the same steps (SPEC-UPDATE-LOGS 4)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.update_log.logs import LogMaker, step_of
from ucpformat.errors import UcpError
from ucpformat.update_log.batch_writer import BatchWriter
from ucpformat.update_log.drafts import BatchDraft, Captured, StepDraft
from ucpformat.update_log.durability import extent_of
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.together import ENOUGH_BYTES, joined_drafts, written_together
from ucpformat.update_log.validation import log_problems


def drafts(count: int, ends: Sequence[int] = ()) -> list[BatchDraft]:
    return [
        BatchDraft(step, [StepDraft()], {"step": step}, (), is_end=step + 1 in ends) for step in range(count)
    ]


def ends_of(count: int, arrivals: Sequence[int], ends: Sequence[int], *, is_alone: bool) -> list[int]:
    """Where batches end that a rank writes, to which so many have come each time that it begins one."""
    waiting, found = drafts(count, ends), []
    here = come = 0
    pace = iter(arrivals)
    while here < count:
        come = min(count, max(come, here) + next(pace, count))
        if come > here:
            here += written_together(waiting[here:come], here, is_alone=is_alone)
            found.append(here)
    return found


COUNT = 150


@given(
    arrivals=st.lists(st.lists(st.integers(0, 12), min_size=COUNT, max_size=COUNT), min_size=1, max_size=4),
    ends=st.sets(st.integers(1, COUNT)).map(sorted),
)
def test_ranks_end_with_the_same_steps(arrivals: list[list[int]], ends: list[int]) -> None:
    """However fast each is: where none is behind by 2^k batches, all end at each multiple of 2^k."""
    found = [ends_of(COUNT, one, ends, is_alone=False) for one in arrivals]
    assert all(one[-1] == COUNT for one in found)
    steps = [max(b - a for a, b in zip([0, *one], one, strict=False)) for one in found]
    common = set.intersection(*map(set, found))
    assert {*ends} <= common
    # What one has skipped lay before a rounder one, so that a window held at least as many.
    most = max(_widest(one, arrival) for one, arrival in zip(found, arrivals, strict=True))
    unit = 1 << most.bit_length()
    assert {*range(unit, COUNT, unit)} <= common
    assert max(steps) <= COUNT


def _widest(ends: Sequence[int], arrivals: Sequence[int]) -> int:
    """How many batches waited at most; what is left of a window waits on."""
    here = come = widest = 0
    pace, upcoming = iter(arrivals), iter(ends)
    while here < COUNT:
        come = min(COUNT, max(come, here) + next(pace, COUNT))
        if come > here:
            widest = max(widest, come - here)
            here = next(upcoming)
    return widest


@given(count=st.integers(1, 20), ends=st.sets(st.integers(1, 20)))
def test_a_rank_alone_writes_what_has_come(count: int, ends: set[int]) -> None:
    assert written_together(drafts(count, [*ends]), 7, is_alone=True) == min([count, *ends])


def test_a_batch_of_several_has_an_end() -> None:
    large = [
        BatchDraft(n, [StepDraft([Captured(0, np.zeros(ENOUGH_BYTES // 3, np.uint8))])], {}, ())
        for n in range(5)
    ]
    assert written_together(large, 0, is_alone=True) == 3
    assert written_together(drafts(1000), 0, is_alone=True) == 256
    huge = BatchDraft(0, [StepDraft([Captured(0, np.zeros(2 * ENOUGH_BYTES, np.uint8))])], {}, ())
    assert written_together([huge, huge], 0, is_alone=True) == 1


def test_what_is_joined_is_the_state_behind_the_last() -> None:
    joined = joined_drafts(drafts(4, [4]))
    assert (joined.first_step, len(joined.steps), joined.values, joined.is_end) == (0, 4, {"step": 3}, True)


class Slow(LogPlace):
    """A place whose puts begin when they are let, and that tells when one waits."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.free = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)

    def has(self, key: str) -> bool:
        found = super().has(key)
        self.asked.release()
        self.free.acquire()
        return found


@pytest.mark.parametrize("every", [0.0, 3600.0])
def test_what_comes_while_one_is_written_is_written_as_one(every: float) -> None:
    """UCP-W-037; nobody who waits for it waits for an hour."""
    maker = LogMaker(f"memory://{uuid4().hex}/updates.ucplog")
    epoch = maker.epoch()
    place = Slow(str(maker.path))
    writer = BatchWriter(place, epoch, maker.epochs[0][1], 0, most_bytes=1 << 20, every=every)
    other = BatchWriter(
        LogPlace(str(maker.path)), epoch, maker.epochs[0][1], 1, most_bytes=1 << 20, every=every
    )
    for step in range(6):
        for rank, one in enumerate((writer, other)):
            draft = step_of(epoch, rank, step)
            draft.options = ({"lr": 0.5},)
            one.put(BatchDraft(step, [draft], {"cursor": step}, ()))
        if step == 0:
            place.asked.acquire()  # it has begun, before the others come
    place.free.release(20)
    writer.close()
    other.close()
    assert (writer.durable_step, other.durable_step) == (6, 6)
    found = [key.first_step for key in place.keys().batches if key.rank == 0]
    assert len(found) <= 3  # those that end at 4 and at 6; the first began alone, or with some that had come
    assert log_problems(str(maker.path)) == []
    with StoredLog(str(maker.path)) as log:
        assert extent_of(log, (0, 0)).stop_step == 6


def test_a_step_waits_where_too_much_is_pending_however_far_apart_batches_are() -> None:
    maker = LogMaker(f"memory://{uuid4().hex}/updates.ucplog")
    epoch = maker.epoch(ranks=1, pieces=(), tensors=(), groups=())
    writer = BatchWriter(LogPlace(str(maker.path)), epoch, maker.epochs[0][1], 0, most_bytes=0, every=3600.0)
    for step in range(3):
        writer.put(BatchDraft(step, [StepDraft(options=())], {}, ()))
    writer.close()
    assert writer.durable_step == 3


def test_a_failure_is_raised_to_whoever_waits() -> None:
    maker = LogMaker(f"memory://{uuid4().hex}/updates.ucplog")
    epoch = maker.epoch()
    maker.epoch(1, after=0)
    writer = BatchWriter(
        LogPlace(str(maker.path)), epoch, maker.epochs[0][1], 0, most_bytes=1 << 20, every=3600.0
    )
    draft = step_of(epoch, 0, 0)
    draft.options = ({"lr": 0.5},)
    writer.put(BatchDraft(0, [draft], {}, ()))
    with pytest.raises(UcpError, match="UCP-E-FENCED"):
        writer.drain()
    with pytest.raises(UcpError, match="UCP-E-FENCED"):
        writer.close()
    assert not writer._thread.is_alive()
