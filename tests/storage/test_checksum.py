"""CRC-32C and its arithmetic, against another library than the one that makes it (SPEC 11.3, 16.5)."""

from __future__ import annotations

import hashlib
import zlib
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from awscrt.checksums import combine_crc32
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.storage import checksum
from ucpformat.storage.checksum import (
    ContentDigest,
    RunChecksums,
    block_checksums,
    checksum_run,
    combine,
    packed,
    unpacked,
    whole_digest,
    zero_cuts,
    zeros_checksum,
)

BLOCK = 16


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> object:
    """Blocks of 16 bytes, so that small data have many."""
    with patch.object(checksum, "BLOCK_BYTES", BLOCK):
        checksum.zeros_checksum.cache_clear()
        yield
    checksum.zeros_checksum.cache_clear()


def blocks_of(data: bytes) -> list[int]:
    return [crc32c(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK)]


@given(st.integers(0, 5000), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_the_checksum_of_bytes_that_begin_anywhere(size: int, start: int, seed: int) -> None:
    """Vector instructions take many bytes at a time, and others what is left at both ends."""
    data = np.random.default_rng(seed).bytes(start + size)
    with patch.object(checksum, "BLOCK_BYTES", 1 << 20):
        assert block_checksums([memoryview(data)[start:]]) == packed([crc32c(data[start:])] if size else [])


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_combination_is_the_checksum_of_the_concatenation(first: bytes, second: bytes) -> None:
    assert combine(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


@given(st.lists(st.binary(max_size=99), max_size=5))
def test_combination_for_zip_is_that_of_zlib(parts: list[bytes]) -> None:
    total = 0
    for part in parts:
        total = combine_crc32(total, zlib.crc32(part), len(part))
    assert total == zlib.crc32(b"".join(parts))


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**40), st.integers(1, 2**40))
def test_combination_of_long_runs_associates(first: int, second: int, length: int, other: int) -> None:
    """Lengths that nobody hashes in a test: ``a + (b + c)`` is ``(a + b) + c``."""
    for join in (combine, combine_crc32):
        assert join(first, join(second, 5, other), length + other) == join(
            join(first, second, length), 5, other
        )


@given(st.integers(0, 200))
def test_zeros(length: int) -> None:
    assert zeros_checksum(length) == crc32c(bytes(length))


@given(st.lists(st.binary(max_size=50)))
def test_blocks_run_across_buffers(buffers: list[bytes]) -> None:
    found = block_checksums([memoryview(buffer) for buffer in buffers])
    assert list(unpacked(found)) == blocks_of(b"".join(buffers))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_values_are_kept_as_the_chunk_table_has_them(values: list[int]) -> None:
    assert packed(values) == np.array(values, "<u4").tobytes()
    assert unpacked(packed(values)) == tuple(values)


@given(st.binary(max_size=120), st.integers(0, 100))
def test_one_pass_gives_blocks_total_and_cuts(data: bytes, start: int) -> None:
    run = checksum_run(memoryview(data), start)
    assert list(unpacked(run.blocks)) == blocks_of(data)
    assert run.total == crc32c(data)
    before = start % BLOCK  # cuts are at multiples of a block, counted from the start of the slot
    aligned = bytes(before) + data
    parts = [aligned[at : at + BLOCK] for at in range(0, len(aligned), BLOCK)] if data else []
    parts[:1] = [part[before:] for part in parts[:1]]
    assert list(unpacked(run.cuts)) == [crc32c(part) for part in parts]


@given(st.binary(max_size=160), st.integers(0, 100), st.lists(st.integers(0, 10), max_size=4))
def test_what_comes_in_pieces_is_one_run(data: bytes, start: int, edges: list[int]) -> None:
    checks = RunChecksums(start)
    places = sorted({0, *(edge * BLOCK for edge in edges if edge * BLOCK < len(data)), len(data)})
    for first, stop in pairwise(places):
        checks.add(memoryview(data)[first:stop])
    assert checks.run() == checksum_run(memoryview(data), start)


@given(st.binary(max_size=60), st.lists(st.binary(max_size=40), max_size=3))
def test_a_run_is_extended_without_reading_it_again(data: bytes, tail: list[bytes]) -> None:
    run = checksum_run(memoryview(data), 0)
    found = run.extended([memoryview(part) for part in tail], len(data))
    assert list(unpacked(found)) == blocks_of(data + b"".join(tail))


@given(st.integers(1, 120), st.integers(0, 100))
def test_zero_cuts_are_those_of_zeros(size: int, start: int) -> None:
    assert zero_cuts(size, start) == checksum_run(memoryview(bytes(size)), start).cuts


@given(st.binary(max_size=150), st.data())
def test_runs_in_any_order_make_one_digest(data: bytes, draw: st.DataObject) -> None:
    """UCP-D-038."""
    inner = draw.draw(st.lists(st.integers(1, max(1, len(data) - 1)), max_size=5))
    edges = sorted({0, len(data), *(edge for edge in inner if edge < len(data))})
    runs = list(pairwise(edges))
    digest = ContentDigest(len(data))
    for number, (start, stop) in enumerate(draw.draw(st.permutations(runs))):
        assert digest.value() is None, number
        digest.add(start, stop - start, checksum_run(memoryview(data)[start:stop], start).cuts)
    values = np.array(blocks_of(data), "<u4").tobytes()
    assert digest.value() == "crc32c-tree:" + hashlib.sha256(values).hexdigest()


def test_a_run_twice_makes_no_digest() -> None:
    digest = ContentDigest(4)
    cuts = checksum_run(memoryview(b"abcd"), 0).cuts
    digest.add(0, 4, cuts)
    digest.add(0, 4, cuts)
    assert digest.value() is None


@given(st.binary(min_size=1, max_size=5 * BLOCK))
def test_a_slot_that_is_one_run_is_digested_in_one_step(data: bytes) -> None:
    run = checksum_run(memoryview(data), 0)
    digest = ContentDigest(len(data))
    digest.add(0, len(data), run.cuts)
    assert digest.value() == whole_digest(run.cuts)
