"""Many boxes of slots at once (SPEC section 17.3): in the order of the objects they lie in, small ones together.

An uncompressed segment that is wanted whole, and lies whole in the destination, is a run of bytes. Runs that follow
one another in a pack are fetched by one call, and several calls proceed at once. Everything else goes the way of
`ChunkReader`, chunk by chunk. Slots that are one segment, as small ones are, are looked up all at once.
"""

from __future__ import annotations

from concurrent.futures import wait
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.model.table import OWN_OBJECT
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.chunk_reader import verify_blocks
from ucpformat.storage.host_memory import flat_bytes
from ucpformat.storage.selection import selection
from ucpformat.storage.workers import call_groups, task_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.table import Segment
    from ucpformat.storage.chunk_reader import ChunkReader
    from ucpformat.storage.counted import Readable
    from ucpformat.storage.part import StoredPart, StoredSlot
    from ucpformat.storage.store import Calls

__all__ = ["BulkReader"]

_CALL_BYTES: Final = 1 << 22  # a multiple of BLOCK_BYTES, small enough to be verified while in cache
_CALL_RUNS: Final = 1024  # as many buffers as a call of the system takes
_GROUP_CHUNKS: Final = 16
_REMOTE_RUNS: Final = 1 << 14  # a wait is worth many checksums


_OfChunk = tuple["StoredSlot", int, "tuple[Segment, ...]", "Box", "NDArray[np.generic]"]


class _Run(NamedTuple):
    """Bytes ``[offset, stop)`` of one object: first those wanted, then ``tail`` that are only verified."""

    key: str
    offset: int
    stop: int
    target: memoryview
    tail: int
    checksums: bytes
    first_block: int


class BulkReader:
    """Fills arrays with boxes of slots; ``verify`` and ``executor`` as `ChunkReader`, which does the odd ones.

    ``calls`` are those of the store.
    """

    def __init__(
        self, store: Readable, reader: ChunkReader, executor: Executor, *, calls: Calls, verify: bool = True
    ) -> None:
        self._store = store
        self._reader = reader
        self._executor = executor
        self._verify = verify
        self._gap = calls.gap
        # Where a call waits for the network, it takes as many runs as it can, and chunks do not wait for one another.
        self._call_runs = _CALL_RUNS if calls.at_once is None else _REMOTE_RUNS
        self._group_chunks = _GROUP_CHUNKS if calls.at_once is None else 1

    def read(self, targets: Iterable[tuple[StoredSlot, Box, NDArray[np.generic]]]) -> None:
        """Fill each array (shape of its box, numpy type of its slot, any strides) with a box of a slot.

        Raises:
            UcpError: as procedure 17.3 says. What the arrays then hold is not defined.
        """
        runs: list[_Run] = []
        rest: list[_OfChunk] = []
        for stored, chunk, box, out in self._without_small(targets, runs):
            segments = stored.segments(chunk)
            of_chunk = self._runs(stored, chunk, segments, box, out)
            if of_chunk is None:
                rest.append((stored, chunk, segments, box, out))
            else:
                runs.extend(of_chunk)
        runs.sort(key=itemgetter(0, 1))
        calls = call_groups(
            runs, itemgetter(0, 1, 2), gap=self._gap, nbytes=_CALL_BYTES, most=self._call_runs
        )
        futures = [self._executor.submit(self._fetch, call) for call in calls]
        groups = task_groups(rest, lambda one: one[-1].nbytes, nbytes=_CALL_BYTES, most=self._group_chunks)
        futures += [self._executor.submit(self._read_chunks, group) for group in groups]
        wait(futures)
        for future in futures:
            future.result()

    @staticmethod
    def _without_small(
        targets: Iterable[tuple[StoredSlot, Box, NDArray[np.generic]]], runs: list[_Run]
    ) -> Iterator[tuple[StoredSlot, int, Box, NDArray[np.generic]]]:
        """Chunks one by one, but for small slots that are one segment each: those are added to ``runs``."""
        small: dict[StoredPart, list[tuple[StoredSlot, Box, NDArray[np.generic]]]] = {}
        for target in targets:
            stored, box, out = target
            grid = stored.grid
            if (
                grid.count == 1
                and stored.compressor is None
                and (box is grid.whole or box == grid.whole)
                and out.nbytes <= _CALL_BYTES
                and out.flags.c_contiguous
            ):
                small.setdefault(stored.part, []).append(target)
            elif not box.is_empty:
                for chunk in grid.chunks_for(box):
                    yield stored, chunk, box, out
        for part, found in small.items():
            segments = part.table.single_segments([stored.first_row for stored, _, _ in found])
            keys = [pack.key for pack in part.packs]
            for (stored, box, out), segment in zip(found, segments, strict=True):
                if segment is None or segment.container == OWN_OBJECT or segment.length != out.nbytes:
                    yield stored, 0, box, out
                    continue
                container, offset, length, _, checksums = segment
                runs.append(_Run(keys[container], offset, offset + length, flat_bytes(out), 0, checksums, 0))

    def _read_chunks(self, group: Iterable[_OfChunk]) -> None:
        for stored, chunk, segments, box, out in group:
            self._reader.read_segments(stored, chunk, segments, box, out)

    @staticmethod
    def _runs(
        stored: StoredSlot, chunk: int, segments: Sequence[Segment], box: Box, out: NDArray[np.generic]
    ) -> list[_Run] | None:
        """The runs that fill what ``out`` has of a chunk, or None where it takes more than runs.

        It does not where every segment is wanted whole, and lies in ``out`` without a gap.
        """
        if stored.compressor is not None or not segments:
            return None
        chunk_box = stored.chunk_box(chunk)
        runs: list[_Run] = []
        for segment in segments:
            held = chunk_box if segment.box is None else segment.box.translate(chunk_box.offset)
            if not box.contains(held):
                if held.intersect(box) is None:
                    continue
                return None
            target = out if held == box else out[selection(held, box)]
            if not target.flags.c_contiguous:
                return None
            runs.extend(_split(stored.object_key(chunk, segment), segment, flat_bytes(target)))
        return runs

    def _fetch(self, call: Sequence[_Run]) -> None:
        """Read runs of one object that follow one another, and verify each."""
        buffers: list[memoryview] = []
        checked: list[list[memoryview]] = []
        position = call[0].offset
        for run in call:
            if run.offset > position:
                buffers.append(memoryview(bytearray(run.offset - position)))
            parts = [run.target]
            if run.tail and self._verify:
                parts.append(memoryview(bytearray(run.tail)))
            buffers += parts
            checked.append(parts)
            position = run.stop if self._verify else run.stop - run.tail
        self._store.read_into(call[0].key, call[0].offset, buffers)
        if self._verify:
            for run, parts in zip(call, checked, strict=True):
                verify_blocks(parts, run.checksums, run.first_block, run.key)


def _split(key: str, segment: Segment, target: memoryview) -> Iterator[_Run]:
    """The run of a whole chunk, in pieces of a call each; the last one has the padding of an edge chunk."""
    first, checksums = segment.offset, segment.checksums
    last = max(0, target.nbytes - 1) // _CALL_BYTES * _CALL_BYTES
    for start in range(0, last, _CALL_BYTES):
        stop = start + _CALL_BYTES
        yield _Run(key, first + start, first + stop, target[start:stop], 0, checksums, start // BLOCK_BYTES)
    tail = segment.covered - target.nbytes
    stop = first + segment.covered
    yield _Run(key, first + last, stop, target[last:], tail, checksums, last // BLOCK_BYTES)
