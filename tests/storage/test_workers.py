"""Work shared out: everything, in order, in groups within their bounds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.storage.workers import call_edges, in_parallel, task_groups, worker_count, writer_count


@given(sizes=st.lists(st.integers(0, 20)), nbytes=st.integers(1, 40), most=st.integers(1, 5))
def test_a_task_is_full_by_bytes_or_by_number(sizes: list[int], nbytes: int, most: int) -> None:
    groups = list(task_groups(sizes, int, nbytes=nbytes, most=most))
    assert [size for group in groups for size in group] == sizes
    for number, group in enumerate(groups, 1):
        assert sum(group[:-1]) < nbytes
        assert len(group) <= most
        assert number == len(groups) or sum(group) >= nbytes or len(group) == most


@given(
    items=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(0, 12))),
    gap=st.integers(0, 8),
    nbytes=st.integers(1, 30),
    most=st.integers(1, 5),
)
def test_a_call_is_one_stretch_of_one_object(
    items: list[tuple[str, int, int]], gap: int, nbytes: int, most: int
) -> None:
    places = sorted((key, start, start + length) for key, start, length in items)
    columns = np.array([("ab".index(key), start, stop) for key, start, stop in places], np.int64)
    of, starts, stops = columns.reshape(-1, 3).T
    edges = call_edges(of, starts, stops, gap=gap, nbytes=nbytes, most=most)
    groups = [places[first:last] for first, last in edges]
    assert [place for group in groups for place in group] == places

    def fits(group: list[tuple[str, int, int]], key: str, start: int, stop: int) -> bool:
        near = key == group[0][0] and 0 <= start - group[-1][2] <= gap
        return near and stop - group[0][1] <= nbytes and len(group) < most

    for group in groups:
        assert all(fits(group[:place], *group[place]) for place in range(1, len(group)))
    for group, after in pairwise(groups):
        assert not fits(group, *after[0])


@given(wanted=st.none() | st.integers(1, 99), cores=st.none() | st.integers(1, 99), waits=st.booleans())
def test_who_waits_for_the_disk_gets_a_thread_more(
    wanted: int | None, cores: int | None, waits: bool
) -> None:
    with patch.object(os, "cpu_count", lambda: cores):
        found = writer_count(wanted, waits=waits)
        assert found == wanted if wanted else found == worker_count(None) + waits
        assert 1 <= worker_count(None) <= 8


@given(count=st.integers(0, 30), workers=st.integers(1, 5), bad=st.sets(st.integers(0, 29)))
def test_each_task_is_done_once_up_to_the_first_that_fails(count: int, workers: int, bad: set[int]) -> None:
    done: list[int] = []

    def task(number: int) -> Callable[[], None]:
        def do() -> None:
            done.append(number)
            if number in bad:
                raise LookupError(number)

        return do

    first = min((number for number in bad if number < count), default=None)
    with ThreadPoolExecutor(workers) as executor:
        if first is None:
            in_parallel(map(task, range(count)), executor, workers)
        else:
            with pytest.raises(LookupError) as refusal:
                in_parallel(map(task, range(count)), executor, workers)
            assert refusal.value.args == (first,)
    assert sorted(done) == [*range(len(done))]
    assert len(done) == count if first is None else first < len(done)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_so_many_work_at_once(workers: int) -> None:
    """Each waits for all the others, whoever called among them."""
    together = threading.Barrier(workers, timeout=60)
    seen: set[int] = set()

    def tasks() -> Iterator[Callable[[], None]]:
        def meet() -> None:
            together.wait()
            seen.add(threading.get_ident())

        yield from (meet for _ in range(workers))

    with ThreadPoolExecutor(max(1, workers - 1)) as executor:
        in_parallel(tasks(), executor, workers)
    assert len(seen) == workers
    assert threading.get_ident() in seen


def test_a_busy_executor_is_not_waited_for() -> None:
    done: list[int] = []
    free = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(free.wait)
        in_parallel([lambda: done.append(1), lambda: done.append(2)], executor, 2)
        free.set()
    assert done == [1, 2]
