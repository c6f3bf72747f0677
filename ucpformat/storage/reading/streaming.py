"""Stored elements as they pass: each once, in the order of storage, verified, and in the processor's cache.

Whoever counts elements needs neither arrays nor their order. Runs that lie close together are looked at by one task,
where they are mapped if they can be, or a block at a time in memory that is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.storage.checksum import BLOCK_BYTES, verify_blocks
from ucpformat.storage.reading.layers import are_layered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.storage.host_memory import Scratch
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.stores.store import Objects

__all__ = ["TOGETHER_BYTES", "PassingRun", "elements_of", "passing_runs", "run_groups"]

TOGETHER_BYTES: Final = 1 << 24
"""Of runs that one task looks at, whole blocks; the slots of a checkpoint that is stored well lie close together."""
_TOGETHER: Final = 256
_LOOK_BYTES: Final = 1 << 22
"""Whole blocks that are looked at together.

More of them are slower to look at, as a core's own cache does not hold them; with fewer, threads wait for one another
between calls.
"""


class PassingRun(NamedTuple):
    """Bytes ``[start, stop)`` of an object, all of one segment, which are elements of slot ``number`` of those asked.

    They begin with a checksum block; those up to ``covered``, padding perhaps, count in ``checksums``.
    """

    key: str
    start: int
    stop: int
    covered: int
    checksums: bytes
    number: int


def passing_runs(number: int, stored: StoredSlot) -> tuple[list[PassingRun], int] | None:
    """Return the runs of a slot and how many of its elements are zeros that are not stored.

    None where its bytes are not its elements: it is compressed, or rows of it were written over.

    Raises:
        InvalidCheckpointError: as `StoredSlot.segments`.
    """
    if stored.compressor is not None:
        return None
    runs: list[PassingRun] = []
    zeros = 0
    item = stored.dtype.item_bytes
    for chunk in range(stored.grid.count):
        segments = stored.segments(chunk)
        if are_layered(segments):
            return None
        size = stored.grid.box_at(chunk).size
        if not segments:
            zeros += size
        for segment in segments:
            nbytes = (size if segment.box is None else segment.box.size) * item
            key = stored.object_key(chunk, segment)
            for low in range(0, nbytes, TOGETHER_BYTES):
                high = min(nbytes, low + TOGETHER_BYTES)
                # The padding of an edge chunk lies behind its elements.
                covered = min(segment.covered, -(-high // BLOCK_BYTES) * BLOCK_BYTES)
                checksums = segment.checksums[4 * (low // BLOCK_BYTES) : 4 * -(-covered // BLOCK_BYTES)]
                at = segment.offset
                runs.append(PassingRun(key, at + low, at + high, at + covered, checksums, number))
    return runs, zeros


def run_groups(runs: Iterable[PassingRun], *, gap: int) -> Iterator[list[PassingRun]]:
    """Yield runs in order of object and place, so many as are looked at together."""
    group: list[PassingRun] = []
    for run in sorted(runs):
        if group and not (
            run.key == group[0].key
            and group[-1].covered <= run.start <= group[-1].covered + gap
            and run.covered - group[0].start <= TOGETHER_BYTES
            and len(group) < _TOGETHER
        ):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def elements_of(
    store: Objects, runs: Sequence[PassingRun], scratch: Scratch, *, verify: bool
) -> Iterator[tuple[PassingRun, NDArray[np.uint8]]]:
    """Yield the elements of runs of one group, a few blocks at a time, as bytes, which are gone at the next step.

    Raises:
        UcpError: what reading raises, ``UCP-E-CHECKSUM`` among it.
    """
    key, origin, end = runs[0].key, runs[0].start, runs[-1].covered
    with store.glimpse(key, origin, end) as seen:
        window = _Window(store, key, origin, end, scratch)
        if seen is not None:
            window.data = np.frombuffer(seen, np.uint8)
        for run in runs:
            for start in range(run.start, run.covered, _LOOK_BYTES):
                data = window.bytes_at(start, min(start + _LOOK_BYTES, run.covered))
                if verify:
                    verify_blocks([data.data], run.checksums, (start - run.start) // BLOCK_BYTES, key)
                elements = data[: max(0, run.stop - start)]
                if elements.size:
                    yield run, elements


class _Window:
    """The bytes of a range of an object: all of them mapped, or some that were read."""

    def __init__(self, store: Objects, key: str, start: int, end: int, scratch: Scratch) -> None:
        self._store = store
        self._key = key
        self._end = end
        self._scratch = scratch
        self._start = start
        self.data = np.empty(0, np.uint8)

    def bytes_at(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return bytes that lie behind those that were asked for before."""
        if stop > self._start + self.data.size:
            size = min(_LOOK_BYTES, self._end - start)
            self.data = self._scratch.take(size)[:size]
            self._start = start
            self._store.read_into(self._key, start, [self.data.data])
        return self.data[start - self._start : stop - self._start]
