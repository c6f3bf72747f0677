"""Work shared out: everything, in order, in groups within their bounds."""

from __future__ import annotations

import os
from itertools import pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.storage.workers import call_edges, task_groups, worker_count, writer_count


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
