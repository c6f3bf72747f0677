"""CRC-32C over blocks of 1 MiB, and content digests (SPEC sections 11.3 and 16.5).

A chunk's bytes are read once: where its own blocks and the blocks of the slot's logical bytes do not
coincide, it is cut at both, and the values of the cuts are combined.

Several values are kept as the chunk table has them: four bytes each, little-endian. Those of many runs at once are
columns (`followed`, `block_values`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from awscrt.checksums import combine_crc32c as combine
from awscrt.checksums import crc32c

from ucpformat.errors import error
from ucpformat.model.atom import CONTENT_PREFIX
from ucpformat.model.table import BLOCK_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "BLOCK_BYTES",
    "ContentDigest",
    "Run",
    "RunChecksums",
    "block_checksums",
    "block_values",
    "checksum_run",
    "combine",
    "crc32c",
    "differing_blocks",
    "followed",
    "packed",
    "unpacked",
    "verify_blocks",
    "whole_digest",
    "zero_cuts",
    "zeros_checksum",
]


@lru_cache(maxsize=4096)
def zeros_checksum(length: int) -> int:
    """Return CRC-32C of ``length`` zero bytes."""
    whole, rest = divmod(length, BLOCK_BYTES)
    value = 0
    block = bytes(min(length, BLOCK_BYTES))
    for _ in range(whole):
        value = crc32c(block, value)
    return int(crc32c(block[:rest], value))


def packed(values: Iterable[int]) -> bytes:
    """Return checksums as the chunk table has them."""
    return b"".join([value.to_bytes(4, "little") for value in values])


def unpacked(checksums: bytes) -> tuple[int, ...]:
    """Return what `packed` was made of."""
    return struct.unpack(f"<{len(checksums) // 4}I", checksums)


def block_checksums(buffers: Sequence[memoryview]) -> bytes:
    """Return CRC-32C of each successive 1 MiB of the concatenated ``buffers`` (bytes, contiguous)."""
    if len(buffers) == 1 and 0 < buffers[0].nbytes <= BLOCK_BYTES:
        return int(crc32c(buffers[0])).to_bytes(4, "little")
    values: list[int] = []
    value = filled = 0
    for buffer in buffers:
        start = 0
        while start < buffer.nbytes:
            stop = min(buffer.nbytes, start + BLOCK_BYTES - filled)
            value = crc32c(buffer[start:stop], value)
            filled += stop - start
            start = stop
            if filled == BLOCK_BYTES:
                values.append(value)
                value = filled = 0
    if filled:
        values.append(value)
    return packed(values)


class Run(NamedTuple):
    """What one pass over a run of bytes yields.

    ``blocks``: CRC-32C per 1 MiB counted from the run's start. ``total``: that of the whole run.
    ``cuts``: those of the run cut at multiples of 1 MiB counted from the start of the slot.
    """

    blocks: bytes
    total: int
    cuts: bytes

    def extended(self, tail: Sequence[memoryview], length: int) -> bytes:
        """Return ``blocks`` of this run of ``length`` bytes with ``tail`` behind it; the run is not read again."""
        filled = length % BLOCK_BYTES
        if filled == 0:
            return self.blocks + block_checksums(tail)
        first: list[memoryview] = []
        rest: list[memoryview] = []
        room = BLOCK_BYTES - filled
        for buffer in tail:
            first.append(buffer[:room])
            rest.append(buffer[room:])
            room -= first[-1].nbytes
        (value,) = unpacked(self.blocks[-4:])
        for buffer in first:
            value = crc32c(buffer, value)
        return self.blocks[:-4] + packed([value]) + block_checksums(rest)


def checksum_run(data: memoryview, logical_start: int) -> Run:
    """Return checksums of contiguous bytes that lie ``logical_start`` bytes into their slot, in one pass."""
    if 0 < data.nbytes <= BLOCK_BYTES - logical_start % BLOCK_BYTES:
        crc = crc32c(data)
        one = crc.to_bytes(4, "little")
        return Run(one, crc, one)
    checks = RunChecksums(logical_start)
    checks.add(data)
    return checks.run()


class RunChecksums:
    """The `Run` of bytes that come in pieces, one after another: each but the last is a multiple of 1 MiB long."""

    def __init__(self, logical_start: int) -> None:
        self._phase = -logical_start % BLOCK_BYTES  # the first logical boundary, counted from the run's start
        self._blocks: list[int] = []
        self._cuts: list[tuple[int, int]] = []  # none where they are the blocks
        self._size = 0

    def add(self, data: memoryview) -> None:
        """Look at the next piece."""
        size = data.nbytes
        self._size += size
        if self._phase:
            self._add_cut(data)
        else:
            # Little is done between two looks: other threads wait for the interpreter meanwhile.
            self._blocks += [
                crc32c(data[start : start + BLOCK_BYTES]) for start in range(0, size, BLOCK_BYTES)
            ]

    def _add_cut(self, data: memoryview) -> None:
        size, phase, blocks, cuts = data.nbytes, self._phase, self._blocks, self._cuts
        edges = sorted({*range(0, size, BLOCK_BYTES), *range(phase, size, BLOCK_BYTES), size})
        for start, stop in pairwise(edges):
            length = stop - start
            crc = crc32c(data[start:stop])
            if start % BLOCK_BYTES == 0:
                blocks.append(crc)
            else:
                blocks[-1] = combine(blocks[-1], crc, length)
            if not cuts or (start - phase) % BLOCK_BYTES == 0:
                cuts.append((crc, length))
            else:
                cuts[-1] = (combine(cuts[-1][0], crc, length), cuts[-1][1] + length)

    def run(self) -> Run:
        """Return what has come so far."""
        total, left = 0, self._size
        for value in self._blocks:
            total = combine(total, value, min(left, BLOCK_BYTES))
            left -= BLOCK_BYTES
        blocks = packed(self._blocks)
        return Run(blocks, total, packed(crc for crc, _ in self._cuts) if self._phase else blocks)


def _cut_lengths(size: int, logical_start: int) -> list[int]:
    """Return the lengths in bytes of the cuts of a run."""
    stop = logical_start + size
    edges = range(logical_start - logical_start % BLOCK_BYTES, stop, BLOCK_BYTES)
    return [min(stop, edge + BLOCK_BYTES) - max(logical_start, edge) for edge in edges]


def zero_cuts(size: int, logical_start: int) -> bytes:
    """Return the cuts of `checksum_run` for ``size`` zero bytes, without the bytes."""
    return packed(zeros_checksum(length) for length in _cut_lengths(size, logical_start))


def whole_digest(cuts: bytes) -> str:
    """Return the content digest of a slot that is one run, of these cuts."""
    return CONTENT_PREFIX + hashlib.sha256(cuts).hexdigest()


class ContentDigest:
    """Gathers the cuts of a slot's runs, in any order, into its content digest (SPEC 11.3).

    Runs are hashed as soon as all before them are known, so that those in order take no memory.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0
        self._crc = 0
        self._hash = hashlib.sha256()
        self._waiting: dict[int, tuple[int, bytes]] = {}

    def add(self, logical_start: int, size: int, cuts: bytes) -> None:
        """Record the run of ``size`` > 0 bytes that begins ``logical_start`` bytes into the slot."""
        self._waiting[logical_start] = (size, cuts)
        while self._position in self._waiting:
            size, cuts = self._waiting.pop(self._position)
            for crc, length in zip(unpacked(cuts), _cut_lengths(size, self._position), strict=True):
                self._crc = combine(self._crc, crc, length)
                self._position += length
                if self._position % BLOCK_BYTES == 0 or self._position == self._size:
                    self._hash.update(self._crc.to_bytes(4, "little"))
                    self._crc = 0

    def value(self) -> str | None:
        """Return the digest, or None while the runs do not cover the slot."""
        if self._position != self._size or self._waiting:
            return None
        return CONTENT_PREFIX + self._hash.hexdigest()


def verify_blocks(buffers: Sequence[memoryview], checksums: bytes, first: int, at: str) -> None:
    """Compare the concatenated buffers, which begin at block ``first`` of a segment, with its checksums.

    Raises:
        IntegrityError: ``UCP-E-CHECKSUM``, naming the first block that differs.
    """
    for block, words in differing_blocks(block_checksums(buffers), checksums, first).items():
        remedy = "restore this object from a copy, or load another checkpoint"
        raise error("UCP-E-CHECKSUM", f"block {block} has {words}; {remedy}", at=at)


def differing_blocks(found: bytes, checksums: bytes, first: int) -> dict[int, str]:
    """Compare the checksums of blocks, the first of which is block ``first`` of a segment, with those recorded.

    Returns what to say of each block that differs, by its number.
    """
    if found == checksums[4 * first : 4 * first + len(found)]:
        return {}
    recorded = unpacked(checksums[4 * first : 4 * first + len(found)])
    return {
        block: f"CRC-32C {value:08x}, recorded is {expected:08x}"
        for block, (value, expected) in enumerate(zip(unpacked(found), recorded, strict=True), first)
        if value != expected
    }


@lru_cache(maxsize=64)
def _tables(bit: int) -> NDArray[np.uint32]:
    """Return what ``2**bit`` bytes behind them make of the 256 values of each byte of a checksum; (4, 256)."""
    tables = np.zeros((4, 256), np.uint32)
    for place in range(32):
        value = np.uint32(combine(1 << place, 0, 1 << bit))
        low = 1 << place % 8
        tables[place // 8, low : 2 * low] = tables[place // 8, :low] ^ value
    return tables


def followed(values: NDArray[np.uint32], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return `combine` of each value with a checksum 0 of so many bytes: what it adds to that of a concatenation.

    The checksum of a concatenation is then the exclusive or of its parts', each followed by the bytes behind it.
    """
    values = values.copy()
    for bit in range(int(lengths.max(initial=0)).bit_length()):
        (some,) = np.nonzero(lengths >> bit & 1)
        if some.size:
            first, second, third, fourth = _tables(bit)
            old = values[some]
            values[some] = (
                first[old & 255] ^ second[old >> 8 & 255] ^ third[old >> 16 & 255] ^ fourth[old >> 24]
            )
    return values


def block_values(
    cuts: NDArray[np.uint32],
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """Return CRC-32C of each successive 1 MiB of slots that are runs one behind another.

    ``cuts`` are those of all runs (`Run.cuts`), ``counts`` how many each run has; ``starts`` and ``stops`` (bytes)
    where it lies in its slot, and ``ends`` where that ends. The first run of a slot starts at 0.
    """
    values = cuts.copy()
    last = np.cumsum(counts) - 1
    behind = np.minimum(-(-stops // BLOCK_BYTES) * BLOCK_BYTES, ends) - stops
    values[last] = followed(values[last], behind)
    begins = np.ones(values.size, bool)
    begins[last - counts + 1] = starts % BLOCK_BYTES == 0
    (edges,) = np.nonzero(begins)
    return np.bitwise_xor.reduceat(values, edges) if edges.size else values
