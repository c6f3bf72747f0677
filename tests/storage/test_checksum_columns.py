"""Checksums of many runs at once are those of one after another."""

from __future__ import annotations

import numpy as np
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.storage.checksum import BLOCK_BYTES, block_values, checksum_run, combine, followed

VALUES = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, BLOCK_BYTES)), max_size=8)


@given(VALUES)
def test_followed_is_combine(pairs: list[tuple[int, int]]) -> None:
    values = np.array([value for value, _ in pairs], np.uint32)
    lengths = np.array([length for _, length in pairs], np.int64)
    assert followed(values, lengths).tolist() == [combine(value, 0, length) for value, length in pairs]


@given(st.lists(st.lists(st.integers(1, 2 * BLOCK_BYTES), min_size=1, max_size=4), min_size=1, max_size=3))
def test_blocks_of_runs_are_blocks_of_slots(slots: list[list[int]]) -> None:
    cuts, counts, starts, stops, ends, expected = [], [], [], [], [], []
    for number, sizes in enumerate(slots):
        data = memoryview(np.random.default_rng(number).bytes(sum(sizes)))
        at = 0
        for size in sizes:
            run = np.frombuffer(checksum_run(data[at : at + size], at).cuts, "<u4").tolist()
            cuts += run
            counts.append(len(run))
            starts.append(at)
            at += size
            stops.append(at)
            ends.append(len(data))
        expected += [crc32c(data[first : first + BLOCK_BYTES]) for first in range(0, len(data), BLOCK_BYTES)]
    columns = [np.array(one, np.int64) for one in (counts, starts, stops, ends)]
    assert block_values(np.array(cuts, np.uint32), *columns).tolist() == expected
